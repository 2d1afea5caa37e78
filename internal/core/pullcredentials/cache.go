package pullcredentials

import (
	"maps"
	"strings"
	"time"

	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// maxCached is how many responses of one plugin are cached.
const maxCached = 1024

// Cache has the responses of one plugin that can be reused. The zero value is empty. It is not safe for concurrent
// use.
type Cache struct {
	responses map[string]cached
}

type cached struct {
	auth  map[string]api.AuthConfig
	until time.Time
}

// Find returns the credentials of a response that is valid for a repository and an identity now (S13.7).
func (c *Cache) Find(repository string, who Identity, now time.Time) (map[string]api.AuthConfig, bool) {
	for _, kind := range []api.PluginCacheKeyType{api.ImagePluginCacheKeyType, api.RegistryPluginCacheKeyType,
		api.GlobalPluginCacheKeyType} {
		if r, ok := c.responses[key(kind, repository, who)]; ok && now.Before(r.until) {
			return r.auth, true
		}
	}
	return nil, false
}

// Add stores a response for its own duration, otherwise for the default of its plugin; zero: it is not cached.
// Responses that have expired are removed.
func (c *Cache) Add(repository string, who Identity, r *api.CredentialProviderResponse, standard time.Duration,
	now time.Time) {
	valid := standard
	if r.CacheDuration != nil {
		valid = r.CacheDuration.Duration
	}
	if valid <= 0 {
		return
	}
	maps.DeleteFunc(c.responses, func(_ string, r cached) bool { return !now.Before(r.until) })
	if c.responses == nil || len(c.responses) >= maxCached {
		c.responses = map[string]cached{} // the plugin can be run again
	}
	c.responses[key(r.CacheKeyType, repository, who)] = cached{auth: r.Auth, until: now.Add(valid)}
}

// key returns the cache key for an image, a registry, or everything (S13.7).
func key(kind api.PluginCacheKeyType, repository string, who Identity) string {
	host, _, _ := strings.Cut(repository, "/")
	switch kind {
	case api.ImagePluginCacheKeyType:
		return digest([]string{string(kind), repository, who.key})
	case api.RegistryPluginCacheKeyType:
		return digest([]string{string(kind), host, who.key})
	default:
		return digest([]string{string(kind), who.key})
	}
}
