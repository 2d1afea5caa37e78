// Package credentials asks credential provider plugins for registry credentials (KEP-2133): programs on the node that
// answer for images of certain registries. The image manager drives it; it must never log or store what a plugin
// answers, and a plugin that fails or hangs costs its own credentials only.
//
// Contract: docs/spec/storage-and-node.md, section S13.
package credentials

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	kubelet "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider"
	"sigs.k8s.io/yaml"
)

const (
	configKind  = "CredentialProviderConfig"
	configGroup = "kubelet.config.k8s.io/"
	requestKind = "CredentialProviderRequest"
)

// versions are the versions of the configuration and of requests.
var versions = []string{"v1", "v1beta1", "v1alpha1"}

// Load reads a configuration, one file or the files .json, .yaml, and .yml of a directory in lexical order, and finds
// the programs in a directory (S13.1–S13.4). Errors name what is wrong.
func Load(config, programs string) (*Plugins, error) {
	files, err := configFiles(config)
	if err != nil {
		return nil, err
	}
	var all []kubelet.CredentialProvider
	hash := sha256.New()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the credential providers: %w", err)
		}
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text)))) // so that no two lists of files are alike
		hash.Write(text)
		var c kubelet.CredentialProviderConfig
		if err := yaml.UnmarshalStrict(text, &c); err != nil {
			return nil, fmt.Errorf("read the credential providers: %s: %w", file, err)
		}
		version, ours := strings.CutPrefix(c.APIVersion, configGroup)
		if c.Kind != configKind || !ours || !slices.Contains(versions, version) {
			return nil, fmt.Errorf("read the credential providers: %s: %q of %q is no %s of %s", file, c.Kind,
				c.APIVersion, configKind, configGroup+versions[0])
		}
		all = append(all, c.Providers...)
	}
	if err := validate(all); err != nil {
		return nil, fmt.Errorf("failed to validate credential provider config: %w", err)
	}
	if info, err := os.Stat(programs); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("plugin binary directory %s did not exist", programs)
	}
	p := &Plugins{Hash: fmt.Sprintf("sha256:%x", hash.Sum(nil))}
	for i := range all {
		program := filepath.Join(programs, all[i].Name)
		if info, err := os.Stat(program); err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			return nil, fmt.Errorf("plugin binary executable %s did not exist", program)
		}
		p.all = append(p.all, newPlugin(all[i], program))
	}
	return p, nil
}

func configFiles(config string) ([]string, error) {
	info, err := os.Stat(config)
	if err != nil {
		return nil, fmt.Errorf("unable to access path %q: %w", config, err)
	}
	if !info.IsDir() {
		return []string{config}, nil
	}
	entries, err := os.ReadDir(config) // sorted by name
	if err != nil {
		return nil, fmt.Errorf("unable to access path %q: %w", config, err)
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(config, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no configuration files found in directory %q", config)
	}
	return files, nil
}

// validate says everything that is wrong with the providers (S13.2, S13.3, S13.9).
func validate(all []kubelet.CredentialProvider) error {
	if len(all) == 0 {
		return errors.New("providers: Required value: at least 1 item in plugins is required")
	}
	var errs []error
	for i := range all {
		p := &all[i]
		fail := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("providers[%d]: "+format, append([]any{i}, args...)...))
		}
		switch {
		case p.Name == "":
			fail("name is required")
		case strings.ContainsAny(p.Name, "/ \x00") || p.Name == "." || p.Name == "..":
			fail("name %q must be a file name without spaces", p.Name)
		case slices.ContainsFunc(all[:i], func(o kubelet.CredentialProvider) bool { return o.Name == p.Name }):
			fail("duplicate provider name %q found in configuration file(s)", p.Name)
		}
		if version, ours := strings.CutPrefix(p.APIVersion, api.GroupName+"/"); !ours ||
			!slices.Contains(versions, version) {
			fail("apiVersion %q is not one of v1, v1beta1, v1alpha1 of %s", p.APIVersion, api.GroupName)
		}
		if len(p.MatchImages) == 0 {
			fail("matchImages needs at least one pattern")
		}
		for _, pattern := range p.MatchImages {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" || strings.Contains(pattern, "://") {
				fail("matchImages: %q is no pattern of a registry and path without scheme", pattern)
			}
		}
		switch {
		case p.DefaultCacheDuration == nil:
			fail("defaultCacheDuration is required")
		case p.DefaultCacheDuration.Duration < 0:
			fail("defaultCacheDuration %v must not be negative", p.DefaultCacheDuration.Duration)
		}
		for _, e := range p.Env {
			if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") || strings.Contains(e.Value, "\x00") {
				fail("env %q is not a variable", e.Name)
			}
		}
		if t := p.TokenAttributes; t != nil {
			validateToken(p, t, fail)
		}
	}
	return errors.Join(errs...)
}

func validateToken(p *kubelet.CredentialProvider, t *kubelet.ServiceAccountTokenAttributes,
	fail func(format string, args ...any)) {
	if p.APIVersion != api.GroupName+"/v1" {
		fail("tokenAttributes need apiVersion %s/v1", api.GroupName)
	}
	if t.ServiceAccountTokenAudience == "" {
		fail("tokenAttributes.serviceAccountTokenAudience is required")
	}
	if t.RequireServiceAccount == nil {
		fail("tokenAttributes.requireServiceAccount is required")
	} else if !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0 {
		fail("tokenAttributes.requiredServiceAccountAnnotationKeys need requireServiceAccount")
	}
	switch t.CacheType {
	case kubelet.TokenServiceAccountTokenCacheType, kubelet.ServiceAccountServiceAccountTokenCacheType:
	default:
		fail("tokenAttributes.cacheType %q is neither Token nor ServiceAccount", t.CacheType)
	}
	for _, name := range t.RequiredServiceAccountAnnotationKeys {
		if slices.Contains(t.OptionalServiceAccountAnnotationKeys, name) {
			fail("tokenAttributes: annotation %q is both required and optional", name)
		}
	}
}

// Matches reports whether a pattern of a registry, and perhaps a path, fits a repository, such as
// Matches reports whether a pattern of a registry, and optionally a path, matches a repository,
// such as registry.example.com/team/app: an asterisk matches a part of one label of the host,
// ports must be equal, and the path is a prefix (S13.5).
func Matches(pattern, repository string) bool {
	patternHost, patternPath, _ := strings.Cut(pattern, "/")
	host, rest, _ := strings.Cut(repository, "/")
	return HostMatches(patternHost, host) && strings.HasPrefix(rest, patternPath)
}

// HostMatches compares label by label, so that * never spans a dot; the ports must be equal.
func HostMatches(pattern, host string) bool {
	patternName, patternPort, _ := strings.Cut(pattern, ":")
	hostName, hostPort, _ := strings.Cut(host, ":")
	want, have := strings.Split(patternName, "."), strings.Split(hostName, ".")
	if patternPort != hostPort || len(want) != len(have) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(want[i], have[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
