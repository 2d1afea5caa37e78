package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"carob/internal/base/errkind"
	"carob/internal/base/testwait"
)

// provider is an OpenID Connect provider on the loopback address.
type provider struct {
	*httptest.Server
	key *ecdsa.PrivateKey
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key}
	point, err := key.PublicKey.Bytes() // 4, X, Y
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	answer := func(path string, body func() any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(body())
		})
	}
	answer("/.well-known/openid-configuration", func() any {
		return map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"ES256"}}
	})
	answer("/keys", func() any {
		b64 := base64.RawURLEncoding.EncodeToString
		return map[string]any{"keys": []any{map[string]string{"kty": "EC", "use": "sig", "alg": "ES256", "kid": "1",
			"crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:])}}}
	})
	p.Server = httptest.NewTLSServer(mux)
	t.Cleanup(p.Close)
	return p
}

// token returns a token signed by the provider; claims replace the valid ones.
func (p *provider) token(t *testing.T, claims jwt.MapClaims) string {
	t.Helper()
	all := jwt.MapClaims{"iss": p.URL, "aud": "carob", "sub": "u-1", "exp": time.Now().Add(time.Hour).Unix(),
		"iat":   time.Now().Unix(),
		"email": "ann@example.org", "email_verified": true, "roles": []string{"dev", "ops"}, "tenant": "blue"}
	maps.Copy(all, claims)
	token := jwt.NewWithClaims(jwt.SigningMethodES256, all)
	token.Header["kid"] = "1"
	text, err := token.SignedString(p.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// config is a file that trusts the provider; more is appended.
func (p *provider) config(more string) string {
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}))
	return `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: ` + p.URL + `
    audiences: [carob]
    certificateAuthority: |
      ` + strings.ReplaceAll(strings.TrimSpace(ca), "\n", "\n      ") + `
  claimValidationRules:
  - expression: claims.tenant in ['blue', 'green']
    message: the tenant is not served
  - expression: claims.email_verified == true
    message: the address is not verified
  claimMappings:
    username: {expression: "'oidc:' + claims.email"}
    groups: {claim: roles, prefix: "team:"}
    uid: {claim: sub}
    extra:
    - {key: example.org/tenant, valueExpression: claims.tenant}
  userValidationRules:
  - expression: "!user.username.startsWith('oidc:system:')"
    message: reserved
` + more
}

const own = "https://kubernetes.default.svc.cluster.local"

func newStructured(t *testing.T, text string) *Structured {
	t.Helper()
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	replace(t, file, text)
	s, err := NewStructured(t.Context(), StructuredConfig{File: file, OwnIssuer: own})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func replace(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func (s *Structured) accepts(token string) bool {
	_, ok, err := s.AuthenticateToken(context.Background(), token)
	return ok && err == nil
}

func TestStructuredTokens(t *testing.T) {
	p, other := newProvider(t), newProvider(t)
	s := newStructured(t, p.config(""))
	testwait.For(t, "the issuer's keys are not fetched", func() bool { return s.accepts(p.token(t, nil)) })

	resp, ok, err := s.AuthenticateToken(t.Context(), p.token(t, nil))
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	want := &user.DefaultInfo{Name: "oidc:ann@example.org", UID: "u-1", Groups: []string{"team:dev", "team:ops"},
		Extra: map[string][]string{"example.org/tenant": {"blue"}}}
	if d := cmp.Diff(&authenticator.Response{User: want, Audiences: authenticator.Audiences{own}}, resp); d != "" {
		t.Error(d)
	}
	forged := *p
	forged.key = other.key
	for _, c := range []struct{ name, token, err string }{
		{"wrong audience", p.token(t, jwt.MapClaims{"aud": "other"}), "audience"},
		{"expired", p.token(t, jwt.MapClaims{"exp": time.Now().Add(-time.Hour).Unix()}), "expired"},
		{"not yet valid", p.token(t, jwt.MapClaims{"nbf": time.Now().Add(time.Hour).Unix()}), "nbf"},
		{"unknown issuer", other.token(t, nil), ""},
		{"forged", forged.token(t, nil), "signature"},
		{"not signed", strings.Join(strings.Split(p.token(t, nil), ".")[:2], ".") + ".", "signature"},
		{"rule about claims", p.token(t, jwt.MapClaims{"tenant": "red"}), "the tenant is not served"},
		{"rule about the user", p.token(t, jwt.MapClaims{"email": "system:admin"}), "reserved"},
		{"e-mail not verified", p.token(t, jwt.MapClaims{"email_verified": false}), "the address is not verified"},
		{"no token", "abc", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, ok, err := s.AuthenticateToken(t.Context(), c.token)
			if ok || resp != nil || (err == nil) != (c.err == "") || err != nil &&
				!strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, %v, want an error with %q", ok, err, c.err)
			}
		})
	}
}

// A review returns the user of an external issuer's token, for the API server's audience only.
func TestStructuredTokenReview(t *testing.T) {
	p := newProvider(t)
	s := newStructured(t, p.config(""))
	testwait.For(t, "the issuer's keys are not fetched", func() bool { return s.accepts(p.token(t, nil)) })
	review := func(audiences ...string) authenticationv1.TokenReviewStatus {
		storage := Reviews(nil, nil, s)[authenticationv1.SchemeGroupVersion]["tokenreviews"].(rest.Creater)
		got, err := storage.Create(t.Context(),
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: p.token(t, nil),
				Audiences: audiences}}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.(*authenticationv1.TokenReview).Status
	}
	if got := review(); !got.Authenticated || got.User.Username != "oidc:ann@example.org" ||
		!cmp.Equal(got.Audiences, []string{own}) {
		t.Errorf("%+v", got)
	}
	if got := review("vault"); got.Authenticated {
		t.Errorf("for another audience: %+v", got)
	}
}

// The whole chain: a request without a credential is anonymous if the file allows it; an invalid
// credential never is.
func TestAnonymous(t *testing.T) {
	with := func(more string) *Structured {
		return newStructured(t, "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"+more)
	}
	for _, c := range []struct {
		name       string
		structured *Structured
		allowed    []string
	}{
		{"without a file", nil, []string{"/healthz", "/readyz", "/livez", "/version", "/version/"}},
		{"not configured", with("jwt: []\n"), []string{"/healthz", "/readyz", "/livez", "/version", "/version/"}},
		{"off", with("anonymous: {enabled: false}\n"), nil},
		{"on", with("anonymous: {enabled: true}\n"),
			[]string{"/healthz", "/readyz", "/livez", "/version", "/version/", "/api", "/readyz/etcd"}},
		{"by path", with("anonymous: {enabled: true, conditions: [{path: /livez}, {path: /api}]}\n"),
			[]string{"/livez", "/api"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := NewAuthenticator(nil, c.structured, c.structured)
			var got []string
			for _, path := range []string{"/healthz", "/readyz", "/livez", "/version", "/version/", "/api",
				"/readyz/etcd"} {
				resp, ok, err := a.AuthenticateRequest(httptest.NewRequest(http.MethodGet, path, nil))
				if err != nil {
					t.Error(path, err)
				}
				if !ok {
					continue
				}
				got = append(got, path)
				if d := cmp.Diff(&user.DefaultInfo{Name: "system:anonymous",
					Groups: []string{"system:unauthenticated"}}, resp.User); d != "" {
					t.Error(d)
				}
			}
			if d := cmp.Diff(c.allowed, got); d != "" {
				t.Error(d)
			}
			for _, credential := range []string{"Bearer wrong", "Basic YTpi"} {
				r := httptest.NewRequest(http.MethodGet, "/livez", nil)
				r.Header.Set("Authorization", credential)
				if _, ok, _ := a.AuthenticateRequest(r); ok {
					t.Errorf("%s is anonymous", credential)
				}
			}
		})
	}
}

func TestStructuredRefused(t *testing.T) {
	p := newProvider(t)
	head := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	for _, c := range []struct{ name, text, err string }{
		{"empty", "", "the file is empty"},
		{"no YAML", "{", "yaml"},
		{"another kind", "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: []\n",
			"AuthenticationConfiguration is needed"},
		{"unknown field", head + "jwts: []\n", `unknown field "jwts"`},
		{"expression", strings.Replace(p.config(""), "claims.tenant in", "claims.tenant inn", 1),
			"jwt[0].claimValidationRules[0].expression"},
		{"issuer twice", p.config("") + strings.SplitN(p.config(""), "jwt:\n", 2)[1], "Duplicate value"},
		{"our own issuer", strings.ReplaceAll(p.config(""), p.URL, own),
			"URL must not overlap with disallowed issuers"},
		{"plain HTTP", strings.ReplaceAll(p.config(""), "https://", "http://"), "URL scheme must be https"},
		{"anonymous conditions", head + "anonymous: {enabled: false, conditions: [{path: /livez}]}\n",
			"enabled should be set to true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "authentication.yaml")
			replace(t, file, c.text)
			_, err := NewStructured(t.Context(), StructuredConfig{File: file, OwnIssuer: own})
			if !errkind.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), c.err) ||
				!strings.Contains(err.Error(), file) {
				t.Errorf("got %v, want %q", err, c.err)
			}
		})
	}
	if _, err := NewStructured(t.Context(), StructuredConfig{File: "/nowhere"}); !errkind.Is(err, errkind.Invalid) {
		t.Error(err)
	}
}

// reloads is how often a changed file was used ("success") or rejected ("failure").
func reloads(t *testing.T, status string) float64 {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0.0
	for _, f := range families {
		if f.GetName() != "apiserver_authentication_config_controller_automatic_reloads_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "status" && l.GetValue() == status {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// The server follows the file: an invalid one changes nothing, an unavailable issuer does not
// affect others, and an unchanged one keeps its keys.
func TestStructuredReload(t *testing.T) {
	p, other := newProvider(t), newProvider(t)
	s := newStructured(t, p.config(""))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	defer func() { stop(); <-ended }()
	testwait.For(t, "the issuer's keys are not fetched", func() bool { return s.accepts(p.token(t, nil)) })
	first := s.current.Load()

	good, bad := reloads(t, "success"), reloads(t, "failure")
	replace(t, s.cfg.File, p.config("anonymous: 7\n"))
	testwait.For(t, "the bad file is not seen", func() bool { return reloads(t, "failure") == bad+1 })
	if s.current.Load() != first || !s.accepts(p.token(t, nil)) {
		t.Error("a bad file took over")
	}

	both := p.config(strings.SplitN(other.config(""), "jwt:\n", 2)[1] + "anonymous: {enabled: true}\n")
	replace(t, s.cfg.File, both)
	testwait.For(t, "the second issuer is not taken", func() bool { return s.accepts(other.token(t, nil)) })
	if !s.accepts(p.token(t, nil)) || reloads(t, "success") != good+1 {
		t.Error("the first issuer is lost")
	}
	if s.current.Load().issuers[0] != first.issuers[0] {
		t.Error("an unchanged issuer was made anew")
	}
	if _, ok, _ := s.AuthenticateRequest(httptest.NewRequest(http.MethodGet, "/api", nil)); !ok {
		t.Error("anonymous requests are not allowed by the new file")
	}

	gone := newProvider(t)
	gone.Close()
	replace(t, s.cfg.File, gone.config(""))
	replace(t, s.cfg.File, other.config(""))
	testwait.For(t, "the removed issuer is still accepted", func() bool { return !s.accepts(p.token(t, nil)) })
	if !s.accepts(other.token(t, nil)) {
		t.Error("the issuer that stays is lost")
	}
}

// A new configuration waits for an issuer that does not answer; the one in use stays until then.
func TestStructuredWaits(t *testing.T) {
	p, late := newProvider(t), newProvider(t)
	s := newStructured(t, p.config(""))
	testwait.For(t, "the issuer's keys are not fetched", func() bool { return s.accepts(p.token(t, nil)) })
	s.seen = s.current.Load().data
	late.Close()
	replace(t, s.cfg.File, late.config(""))
	s.look(t.Context())
	if !s.takeOver(t.Context()) || !s.accepts(p.token(t, nil)) {
		t.Error("took over without the issuer's keys")
	}
	replace(t, s.cfg.File, p.config(""))
	s.look(t.Context())
	if s.takeOver(t.Context()) || s.next != nil || !s.accepts(p.token(t, nil)) {
		t.Error("the old content came back and something waits")
	}
}
