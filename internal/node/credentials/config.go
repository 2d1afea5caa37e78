// Package credentials runs credential provider plugins (KEP-2133): programs on the node that return registry
// credentials for images of certain registries. The image manager drives it; core/pullcredentials decides for which
// pods a plugin runs, and how long its response is used. Responses are never logged and never written to disk, and a
// plugin that fails or hangs affects only the credentials that it would have returned.
//
// Contract: docs/spec/storage-and-node.md, section S13.
package credentials

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	kubelet "k8s.io/kubelet/config/v1"
	"sigs.k8s.io/yaml"

	"carob/internal/core/pullcredentials"
)

const (
	configKind  = "CredentialProviderConfig"
	configGroup = "kubelet.config.k8s.io/"
	requestKind = "CredentialProviderRequest"
)

// Load reads a configuration, one file or the files .json, .yaml, and .yml of a directory in lexical order, and finds
// the programs in a directory (S13.1–S13.4). Errors name the invalid field.
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
		if c.Kind != configKind || !ours || !slices.Contains(pullcredentials.Versions(), version) {
			return nil, fmt.Errorf("read the credential providers: %s: %q of %q is not a %s of %s", file, c.Kind,
				c.APIVersion, configKind, configGroup+pullcredentials.Versions()[0])
		}
		all = append(all, c.Providers...)
	}
	if err := pullcredentials.Validate(all); err != nil {
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
