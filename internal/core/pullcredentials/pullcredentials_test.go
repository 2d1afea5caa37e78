package pullcredentials

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubelet "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

func TestHostMatches(t *testing.T) {
	for _, tt := range []struct {
		pattern, host string
		want          bool
	}{
		{"a.b", "a.b", true}, {"*.b", "a.b", true}, {"*.b", "x.a.b", false}, {"*.b:5000", "a.b:5000", true},
		{"*.b", "a.b:5000", false}, {"a*.b", "abc.b", true}, {"[", "a", false},
	} {
		if got := HostMatches(tt.pattern, tt.host); got != tt.want {
			t.Errorf("%s, %s: %v", tt.pattern, tt.host, got)
		}
	}
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func response(kind api.PluginCacheKeyType, user string, valid *metav1.Duration) *api.CredentialProviderResponse {
	return &api.CredentialProviderResponse{CacheKeyType: kind, CacheDuration: valid,
		Auth: map[string]api.AuthConfig{"a.b": {Username: user}}}
}

// S13.7: a response is reused for the image, the registry, or everything, until the instant when it expires.
func TestCache(t *testing.T) {
	for _, tt := range []struct {
		kind                 api.PluginCacheKeyType
		image, registry, all bool
	}{
		{api.ImagePluginCacheKeyType, true, false, false},
		{api.RegistryPluginCacheKeyType, true, true, false},
		{api.GlobalPluginCacheKeyType, true, true, true},
	} {
		var c Cache
		c.Add("a.b/x", Identity{}, response(tt.kind, "u", nil), time.Hour, start)
		for repository, want := range map[string]bool{"a.b/x": tt.image, "a.b/y": tt.registry, "c.d/x": tt.all} {
			if _, ok := c.Find(repository, Identity{}, start.Add(time.Hour-1)); ok != want {
				t.Errorf("%s: %s: %v, want %v", tt.kind, repository, ok, want)
			}
			if _, ok := c.Find(repository, Identity{}, start.Add(time.Hour)); ok {
				t.Errorf("%s: %s: an expired response is used", tt.kind, repository)
			}
		}
	}
}

// The duration of a response comes before the default of its plugin; zero or less is not cached.
func TestCacheDuration(t *testing.T) {
	for _, tt := range []struct {
		own      *metav1.Duration
		standard time.Duration
		want     time.Duration
	}{
		{nil, time.Hour, time.Hour}, {nil, 0, 0}, {&metav1.Duration{Duration: time.Minute}, time.Hour, time.Minute},
		{&metav1.Duration{}, time.Hour, 0}, {&metav1.Duration{Duration: -time.Second}, time.Hour, 0},
	} {
		var c Cache
		c.Add("a.b/x", Identity{}, response(api.ImagePluginCacheKeyType, "u", tt.own), tt.standard, start)
		if _, ok := c.Find("a.b/x", Identity{}, start.Add(tt.want-1)); ok != (tt.want > 0) {
			t.Errorf("%v, default %v: %v before %v", tt.own, tt.standard, ok, tt.want)
		}
		if _, ok := c.Find("a.b/x", Identity{}, start.Add(tt.want)); ok {
			t.Errorf("%v, default %v: used after %v", tt.own, tt.standard, tt.want)
		}
	}
}

// The size of the cache is limited for any number of images; expired responses are removed before
// valid ones.
func TestCacheIsBounded(t *testing.T) {
	var c Cache
	add := func(n int, now time.Time) {
		c.Add(fmt.Sprintf("a.b/%d", n), Identity{}, response(api.ImagePluginCacheKeyType, "u", nil), time.Hour, now)
	}
	for n := range maxCached {
		add(n, start)
	}
	later := start.Add(time.Hour)
	add(maxCached, later)
	if len(c.responses) != 1 {
		t.Errorf("%d responses, the expired ones among them", len(c.responses))
	}
	for n := range 3 * maxCached {
		if add(n, later); len(c.responses) > maxCached {
			t.Fatalf("%d responses", len(c.responses))
		}
		if _, ok := c.Find(fmt.Sprintf("a.b/%d", n), Identity{}, later); !ok {
			t.Fatal("the newest response is not there")
		}
	}
}

// S13.10: a response for one account is used for no other: not for another name, UID, or annotation, not for the node,
// and not for names that are equal only when they are concatenated.
func TestIdentitiesDoNotShare(t *testing.T) {
	of := func(kind kubelet.ServiceAccountTokenCacheType, namespace, name, uid, role, token string) Identity {
		attributes := &kubelet.ServiceAccountTokenAttributes{CacheType: kind,
			RequiredServiceAccountAnnotationKeys: []string{"role"}}
		who, ok := OfAccount(attributes, types.NamespacedName{Namespace: namespace, Name: name}, &corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Annotations: map[string]string{"role": role}}})
		if !ok {
			t.Fatal("the plugin is not run")
		}
		return who.WithToken(attributes, token)
	}
	const account, token = kubelet.ServiceAccountServiceAccountTokenCacheType, kubelet.TokenServiceAccountTokenCacheType
	var c Cache
	c.Add("a.b/x", of(account, "ns", "a", "u", "r", "t"), response(api.GlobalPluginCacheKeyType, "u", nil), time.Hour,
		start)
	c.Add("a.b/x", of(token, "ns", "b", "u", "r", "t"), response(api.GlobalPluginCacheKeyType, "u", nil), time.Hour,
		start)
	for i, tt := range []struct {
		who  Identity
		want bool
	}{
		{of(account, "ns", "a", "u", "r", "t"), true}, {of(account, "ns", "a", "u", "r", "another"), true},
		{of(token, "ns", "b", "u", "r", "t"), true}, {of(token, "ns", "b", "u", "r", "another"), false},
		{Identity{}, false}, {of(account, "ns", "a", "u2", "r", "t"), false},
		{of(account, "n", "sa", "u", "r", "t"), false}, {of(account, "ns", "a", "u", "R", "t"), false},
		{of(account, "ns", "a", "ur", "", "t"), false},
	} {
		if _, ok := c.Find("a.b/x", tt.who, start); ok != tt.want {
			t.Errorf("%d: %+v: %v, want %v", i, tt.who, ok, tt.want)
		}
	}
	missing := &kubelet.ServiceAccountTokenAttributes{RequiredServiceAccountAnnotationKeys: []string{"other"}}
	if who, ok := OfAccount(missing, types.NamespacedName{}, &corev1.ServiceAccount{}); ok || who.Account != nil {
		t.Error("the plugin is run without an annotation that it requires")
	}
}

// S13.9: whether a plugin is run for pods without a service account.
func TestWithoutAccount(t *testing.T) {
	if !WithoutAccount(nil) {
		t.Error("a plugin that reads no account is not run")
	}
	for _, required := range []bool{true, false} {
		if WithoutAccount(&kubelet.ServiceAccountTokenAttributes{RequireServiceAccount: &required}) == required {
			t.Errorf("requireServiceAccount %v is not respected", required)
		}
	}
}

func FuzzResponse(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Image","auth":{"a":{}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p := &kubelet.CredentialProvider{APIVersion: "credentialprovider.kubelet.k8s.io/v1"}
		r, err := Response(p, text, Identity{})
		if err != nil {
			return
		}
		for _, c := range Credentials(r.Auth, "r.example.com/a", Identity{}) {
			if !Matches(c.Pattern, "r.example.com/a") {
				t.Errorf("%+v", c)
			}
		}
	})
}
