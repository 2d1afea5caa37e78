package pullcredentials

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	kubelet "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// Credential is a credential that a plugin returned for a repository.
type Credential struct {
	Username, Password string
	Pattern            string // of the repositories that it is for
	// Account is the service account that it was returned for; nil: the node, so that all pods may use it.
	Account *types.NamespacedName
	UID     types.UID // of the account
}

// Credentials returns the entries of a response that match a repository, the longest pattern first
// (S13.7).
func Credentials(auth map[string]api.AuthConfig, repository string, who Identity) []Credential {
	var out []Credential
	for _, pattern := range slices.Sorted(maps.Keys(auth)) {
		if Matches(pattern, repository) {
			out = append(out, Credential{Username: auth[pattern].Username, Password: auth[pattern].Password,
				Pattern: pattern, Account: who.Account, UID: who.UID})
		}
	}
	slices.Reverse(out)
	return out
}

// Response decodes and checks the standard output of a plugin (S13.6, S13.10). Errors contain no part of it that could
// be secret.
func Response(p *kubelet.CredentialProvider, text []byte, who Identity) (*api.CredentialProviderResponse, error) {
	var r api.CredentialProviderResponse
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("decode the response of credential provider plugin %s: it is not JSON", p.Name)
	}
	if r.APIVersion != p.APIVersion {
		return nil, fmt.Errorf("apiVersion from credential plugin response did not match expected apiVersion:%s, "+
			"actual apiVersion:%.100s", p.APIVersion, r.APIVersion)
	}
	switch r.CacheKeyType {
	case api.ImagePluginCacheKeyType, api.RegistryPluginCacheKeyType, api.GlobalPluginCacheKeyType:
	default:
		return nil, fmt.Errorf("credential provider plugin did not return a valid cacheKeyType: %.100q",
			r.CacheKeyType)
	}
	for _, a := range r.Auth { // any order: one is enough
		if who.Token != "" && a.Password == who.Token &&
			p.TokenAttributes.CacheType != kubelet.TokenServiceAccountTokenCacheType {
			return nil, errors.New("credential provider plugin returned the service account token as the password which " +
				"is not allowed when service account cache type is not set to 'Token'")
		}
	}
	return &r, nil
}
