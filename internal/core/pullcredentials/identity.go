package pullcredentials

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubelet "k8s.io/kubelet/config/v1"
)

// Identity is the identity for which a plugin is run; the zero value is the node itself.
type Identity struct {
	Account     *types.NamespacedName // the pod's service account; nil: the node
	UID         types.UID             // of the account
	Token       string                // of the account, for the registry
	Annotations map[string]string     // of the account, those that the plugin reads

	key string // responses are shared only by identities with the same key
}

// WithoutAccount reports whether a plugin is run for a pod without a service account (S13.9).
func WithoutAccount(t *kubelet.ServiceAccountTokenAttributes) bool {
	return t == nil || !*t.RequireServiceAccount
}

// OfAccount returns the identity of a service account, without its token. It is false if the plugin is not run for this
// account, because an annotation that it requires is missing (S13.9).
func OfAccount(t *kubelet.ServiceAccountTokenAttributes, name types.NamespacedName, account *corev1.ServiceAccount) (
	who Identity, ok bool) {
	who = Identity{Account: &name, UID: account.UID, Annotations: map[string]string{}}
	for _, key := range t.RequiredServiceAccountAnnotationKeys {
		value, has := account.Annotations[key]
		if !has {
			return Identity{}, false
		}
		who.Annotations[key] = value
	}
	for _, key := range t.OptionalServiceAccountAnnotationKeys {
		if value, has := account.Annotations[key]; has {
			who.Annotations[key] = value
		}
	}
	return who, true
}

// WithToken adds the account's token. Responses for the identity are shared for the same account, UID, and
// annotations, and if the plugin's cache type is Token, for the same token (S13.10).
func (i Identity) WithToken(t *kubelet.ServiceAccountTokenAttributes, token string) Identity {
	i.Token = token
	parts := []string{i.Account.String(), string(i.UID)}
	for _, key := range slices.Sorted(maps.Keys(i.Annotations)) {
		parts = append(parts, key, i.Annotations[key])
	}
	if t.CacheType == kubelet.TokenServiceAccountTokenCacheType {
		parts = append(parts, token)
	}
	i.key = digest(parts)
	return i
}

// RunKey returns a key that is equal for requests that can share one run of a plugin.
func RunKey(repository string, who Identity) string { return digest([]string{repository, who.key}) }

// digest returns a key for parts, which may contain any characters.
func digest(parts []string) string {
	text, _ := json.Marshal(parts) // strings always encode
	return fmt.Sprintf("%x", sha256.Sum256(text))
}
