package image

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/pullcredentials"
)

// keyring holds registry credentials. The most specific ones come first.
type keyring struct{ keys []key }

// key is a credential for a registry, or for a part of it.
type key struct {
	host, path string // host may hold * in each of its labels
	auth       *cri.AuthConfig
	from       credential
	everybody  bool // the node's credential: all pods may use the images it gives access to
}

// dockerAuth is one entry of a docker configuration file.
type dockerAuth struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Auth     string `json:"auth"`
	Identity string `json:"identitytoken"`
	Registry string `json:"registrytoken"`
}

// add adds the credentials of a secret of one of the two docker types.
func (r *keyring) add(secret *corev1.Secret) error {
	if secret.Data[corev1.DockerConfigJsonKey] == nil && secret.Data[corev1.DockerConfigKey] == nil {
		return fmt.Errorf("secret %s holds no docker configuration", secret.Name)
	}
	from := credential{Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID}
	return r.addFiles("secret "+secret.Name, secret.Data, from, false)
}

// addFiles adds the credentials of docker configurations; the keys of files are the names of their formats.
func (r *keyring) addFiles(source string, files map[string][]byte, from credential, everybody bool) error {
	var entries map[string]dockerAuth
	switch {
	case files[corev1.DockerConfigJsonKey] != nil:
		var file struct {
			Auths map[string]dockerAuth `json:"auths"`
		}
		if err := json.Unmarshal(files[corev1.DockerConfigJsonKey], &file); err != nil {
			return fmt.Errorf("%s: %s: %w", source, corev1.DockerConfigJsonKey, err)
		}
		entries = file.Auths
	case files[corev1.DockerConfigKey] != nil:
		if err := json.Unmarshal(files[corev1.DockerConfigKey], &entries); err != nil {
			return fmt.Errorf("%s: %s: %w", source, corev1.DockerConfigKey, err)
		}
	}
	for registry, a := range entries {
		auth := &cri.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.Identity,
			RegistryToken: a.Registry}
		if a.Auth != "" {
			plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(a.Auth))
			if err != nil {
				if plain, err = base64.RawStdEncoding.DecodeString(strings.TrimSpace(a.Auth)); err != nil {
					return fmt.Errorf("%s: auth of %s is not base64", source, registry)
				}
			}
			user, password, ok := strings.Cut(string(plain), ":")
			if !ok {
				return fmt.Errorf("%s: auth of %s is not USER:PASSWORD", source, registry)
			}
			auth.Username, auth.Password = user, password
		}
		host, repository := splitRegistry(registry)
		auth.ServerAddress = host
		sum := sha256.Sum256([]byte(auth.String()))
		from.Hash = hex.EncodeToString(sum[:])
		r.keys = append(r.keys, key{host: host, path: repository, auth: auth, from: from, everybody: everybody})
	}
	// Descending, so that the longer path of two that both match comes first.
	slices.SortStableFunc(r.keys, func(a, b key) int {
		return strings.Compare(b.host+"/"+b.path, a.host+"/"+a.path)
	})
	return nil
}

// splitRegistry takes scheme and API version off the key of a docker configuration.
func splitRegistry(s string) (host, repository string) {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "https://"), "http://")
	host, repository, _ = strings.Cut(s, "/")
	repository = strings.Trim(repository, "/")
	for _, version := range []string{"v1", "v2"} {
		if repository == version {
			repository = ""
		}
		repository = strings.TrimPrefix(repository, version+"/")
	}
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = "docker.io"
	}
	return host, repository
}

// lookup returns the credentials for a normalized image name, best first.
func (r *keyring) lookup(name string) []*key {
	host, repository, _ := strings.Cut(name, "/")
	var found []*key
	for i := range r.keys {
		k := &r.keys[i]
		if pullcredentials.HostMatches(k.host, host) && underPath(k.path, repository) {
			found = append(found, k)
		}
	}
	return found
}

func underPath(prefix, repository string) bool {
	return prefix == "" || strings.HasPrefix(repository, prefix)
}
