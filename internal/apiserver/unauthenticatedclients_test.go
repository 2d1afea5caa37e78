package apiserver

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/base/testwait"
)

// slowIssuer is an OpenID Connect provider that never returns its keys, and the configuration that
// trusts it. Each request for them sends to fetched, each abandoned one to left.
func slowIssuer(t *testing.T) (url, config string, fetched, left, release chan struct{}) {
	t.Helper()
	fetched, left, release = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
	mux := http.NewServeMux()
	s := httptest.NewTLSServer(mux)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": s.URL, "jwks_uri": s.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"ES256"}})
	})
	mux.HandleFunc("/keys", func(_ http.ResponseWriter, r *http.Request) {
		signal(fetched)
		select {
		case <-release:
		case <-r.Context().Done():
			signal(left)
		}
	})
	t.Cleanup(s.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	config = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true}\njwt:\n- issuer:\n    url: " + s.URL +
		"\n    audiences: [carob]\n    certificateAuthority: |\n      " +
		strings.ReplaceAll(strings.TrimSpace(ca), "\n", "\n      ") +
		"\n  claimMappings:\n    username: {claim: sub, prefix: \"oidc:\"}\n"
	return s.URL, config, fetched, left, release
}

// dialUnauthenticated opens an HTTP/2 connection without a credential, with a window of zero for answers.
func (r *running) dialUnauthenticated(t *testing.T) *streams {
	t.Helper()
	d := tls.Dialer{Config: &tls.Config{RootCAs: r.pki.Pool, ServerName: "127.0.0.1", NextProtos: []string{"h2"}}}
	c, err := d.DialContext(t.Context(), "tcp", r.cfg.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s := &streams{Framer: http2.NewFramer(c, c), conn: c.(*tls.Conn), next: 1}
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	return s
}

// Unauthenticated clients use all that they can get and do not release it: connections with no or
// half a handshake, headers and bodies that never end, answers that they do not read, watches, and
// tokens of an issuer that does not return its keys, so that each request waits before it is
// rejected. Administrators and users are served meanwhile, on new connections, too.
func TestUnauthenticatedClientsDelayNoOthers(t *testing.T) {
	url, text, fetched, left, release := slowIssuer(t)
	defer close(release)
	cfg := newConfig(t, t.TempDir())
	cfg.AuthenticationConfig = filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(cfg.AuthenticationConfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startWith(t, cfg)
	admin := r.remote(t, r.pki.Admin.Pair())
	token, err := admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		if _, err = admin.CoreV1().ServiceAccounts("default").Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if token, err = admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default",
			&authenticationv1.TokenRequest{}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b64 := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	forged := b64(map[string]string{"alg": "ES256", "kid": "unknown"}) + "." +
		b64(map[string]any{"iss": url, "aud": "carob", "sub": "mallory",
			"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}) + "." +
		base64.RawURLEncoding.EncodeToString(make([]byte, 64))
	// The issuer is trusted once its discovery document was read.
	probe := r.dialUnauthenticated(t)
	testwait.For(t, "a request for the keys of the issuer", func() bool {
		probe.open(t, "GET", "/api/v1/pods", true, "authorization", "Bearer "+forged)
		return len(fetched) > 0
	})
	before := heap()
	held := func() int {
		r.unauthenticated.mu.Lock()
		defer r.unauthenticated.mu.Unlock()
		return r.unauthenticated.requests
	}
	var forgers []*streams
	hold := func() {
		for _, s := range forgers {
			s.conn.Close()
		}
		testwait.For(t, "earlier clients to have gone", func() bool { return held() < 1000 })
		forgers = nil
		for range 3 {
			s := r.dialUnauthenticated(t)
			forgers = append(forgers, s)
			for range 800 { // more than one user may have
				s.open(t, "GET", "/api/v1/pods", true, "authorization", "Bearer "+forged)
			}
		}
		testwait.For(t, "the forged tokens to be looked at", func() bool { return held() >= 2400 })
	}
	for range 3 {
		s := r.dialUnauthenticated(t)
		for range 50 {
			s.open(t, "GET", "/version", true)
			s.open(t, "GET", "/openapi/v2", true)
			s.open(t, "GET", "/api/v1/configmaps?watch=1", true)
			s.open(t, "POST", "/api/v1/namespaces/default/configmaps", false, "content-type", "application/json",
				"content-length", "1000")
		}
	}
	hello := "\x16\x03\x01\x02\x00\x01"
	for i := range maxUnauthenticatedConns + 100 {
		raw, err := net.Dial("tcp", r.cfg.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { raw.Close() })
		if i%2 == 0 {
			_, _ = io.WriteString(raw, hello) // it may already be closed
		}
	}
	served := func(what string, do func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := do(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The server gives up on an issuer after half a minute, and ends the requests that wait for it:
	// a round that took as long proves nothing.
	rounds, good := 3, 0
	for i := range rounds {
		for len(left) > 0 {
			<-left
		}
		hold()
		served("the administrator, by a new connection", func(ctx context.Context) error {
			_, err := r.remote(t, r.pki.Admin.Pair()).CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
			return err
		})
		served("the administrator, by an old one", func(ctx context.Context) error {
			_, err := admin.CoreV1().ConfigMaps("default").Create(ctx, config(fmt.Sprint("served", i), nil),
				metav1.CreateOptions{})
			return err
		})
		served("a user with a token", func(ctx context.Context) error {
			_, err := r.bearer(t, token.Status.Token).AuthenticationV1().SelfSubjectReviews().Create(ctx,
				&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
			return err
		})
		served("a probe", func(ctx context.Context) error {
			c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: r.pki.Pool},
				DisableKeepAlives: true}}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet,
				"https://"+r.cfg.Listener.Addr().String()+"/readyz", nil)
			if err != nil {
				return err
			}
			resp, err := c.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s", resp.Status)
			}
			return nil
		})
		if len(left) == 0 {
			good++
		}
	}
	if good == 0 {
		t.Error("the others were served when the unauthenticated clients had let go")
	}
	if n := held(); n > maxUnauthenticatedRequests {
		t.Errorf("%d unauthenticated requests are held", n)
	}
	if grown := heap() - before; grown > 300<<20 {
		t.Errorf("%d MB more memory", grown>>20)
	}
}
