// Package pullcredentials decides about the registry credentials that credential provider plugins return (KEP-2133):
// which configuration of plugins is valid, which plugins match a repository, for which identity a plugin is run, which
// responses are valid, for which pulls and how long a response is cached, and the order in which its credentials are
// tried.
//
// Contract: docs/spec/storage-and-node.md, section S13. Driver: node/credentials.
package pullcredentials

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	kubelet "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// Versions are the versions of the configuration and of requests, the newest first.
func Versions() []string { return []string{"v1", "v1beta1", "v1alpha1"} }

// Validate returns all errors of the providers of a configuration (S13.2, S13.3, S13.9).
func Validate(all []kubelet.CredentialProvider) error {
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
			!slices.Contains(Versions(), version) {
			fail("apiVersion %q is not one of v1, v1beta1, v1alpha1 of %s", p.APIVersion, api.GroupName)
		}
		if len(p.MatchImages) == 0 {
			fail("matchImages needs at least one pattern")
		}
		for _, pattern := range p.MatchImages {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" || strings.Contains(pattern, "://") {
				fail("matchImages: %q is not a pattern REGISTRY[/PATH] without scheme", pattern)
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
