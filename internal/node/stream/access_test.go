package stream

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestSubresources(t *testing.T) {
	for path, want := range map[string][]string{
		"/pods": {"pods", "proxy"}, "/runningpods/": {"pods", "proxy"}, "/healthz": {"healthz", "proxy"},
		"/healthz/syncloop": {"healthz", "proxy"},
		"/configz":          {"configz", "proxy"}, "/stats/summary": {"stats"}, "/metrics": {"metrics"},
		"/metrics/resource": {"metrics"}, "/logs/x": {"log"},
		"/exec/ns/pod/c": {"proxy"}, "/containerLogs/ns/pod/c": {"proxy"}, "/images": {"proxy"},
		"/timeline/": {"proxy"}, "/": {"proxy"},
		"/statsfake": {"proxy"}, "/podsx": {"proxy"}, "//pods": {"proxy"}, "/checkpoint/a/b/c": {"checkpoint"},
		"/statusz": {"statusz"}, "/flagz": {"configz"},
	} {
		if got := subresources(path); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

// rbac serves reviews: it authenticates tokens and authorizes users.
type rbac struct {
	mu        sync.Mutex
	requested []string
	tokens    map[string]string
	may       map[string]bool // "user verb subresource"
}

// client is a client of an API that serves only reviews.
func (r *rbac) client(t *testing.T) kubernetes.Interface {
	answer := func(w http.ResponseWriter, req *http.Request, review any, fill func()) {
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Error(err)
		}
		fill()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", func(w http.ResponseWriter, req *http.Request) {
		var review authenticationv1.TokenReview
		answer(w, req, &review, func() {
			if name, ok := r.tokens[review.Spec.Token]; ok {
				review.Status.Authenticated, review.Status.User = true, authenticationv1.UserInfo{Username: name}
			}
		})
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
		func(w http.ResponseWriter, req *http.Request) {
			var review authorizationv1.SubjectAccessReview
			answer(w, req, &review, func() {
				at := review.Spec.ResourceAttributes
				what := fmt.Sprintf("%s %s %s", review.Spec.User, at.Verb, at.Subresource)
				r.mu.Lock()
				defer r.mu.Unlock()
				r.requested = append(r.requested, what+" "+at.Resource+"/"+at.Name)
				review.Status.Allowed = r.may[what]
			})
		})
	api := httptest.NewServer(mux)
	t.Cleanup(api.Close)
	c, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Reachable from outside, the server admits users whom RBAC allows, and no others: no certificate, one of another
// authority, no token, an invalid one, one of a user with other rights.
func TestAccess(t *testing.T) {
	rules := &rbac{
		tokens: map[string]string{"good": "prometheus", "poor": "nobody"},
		may: map[string]bool{"prometheus get metrics": true, "prometheus get stats": true, "reader get pods": true,
			"operator get proxy": true, "operator create proxy": true},
	}
	w := newWorldWith(t, func(c *Config) { c.Others = rules.client(t) })
	other := newAuthority(t)
	client := func(pair *tls.Certificate) *http.Client {
		c := &tls.Config{InsecureSkipVerify: true} // the server is not what is tested
		if pair != nil {
			c.Certificates = []tls.Certificate{*pair}
		}
		return &http.Client{Transport: &http.Transport{TLSClientConfig: c}}
	}
	cert := func(a *authority, cn string) *tls.Certificate { p, _, _ := a.pair(cn); return &p }
	for _, tt := range []struct {
		name         string
		cert         *tls.Certificate
		token        string
		method, path string
		want         int // 0: refused in the handshake
		text         string
	}{
		{"nothing", nil, "", "GET", "/metrics", 401, "Unauthorized"},
		{"nothing for exec", nil, "", "POST", "/exec/ns/web/c?command=id&output=1", 401, "Unauthorized"},
		{"wrong token", nil, "bad", "GET", "/metrics", 401, "Unauthorized"},
		{"token", nil, "good", "GET", "/metrics", 200, ""},
		{"token of another right", nil, "good", "GET", "/stats/summary", 200, ""},
		{"token without the right", nil, "good", "GET", "/pods", 403,
			"Forbidden (user=prometheus, verb=get, resource=nodes, subresource(s)=[pods proxy])"},
		{"token for exec", nil, "good", "POST", "/exec/ns/web/c?command=id&output=1", 403,
			"Forbidden (user=prometheus, verb=create, resource=nodes, subresource(s)=[proxy])"},
		{"token for logs", nil, "good", "GET", "/containerLogs/ns/web/c", 403, "Forbidden"},
		{"token of nobody", nil, "poor", "GET", "/healthz", 403, "Forbidden"},
		{"fine right", cert(w.ca, "reader"), "", "GET", "/pods", 200, ""},
		{"fine right is no more than that", cert(w.ca, "reader"), "", "GET", "/healthz", 403,
			"Forbidden (user=reader, verb=get, resource=nodes, subresource(s)=[healthz proxy])"},
		{"proxy", cert(w.ca, "operator"), "", "GET", "/pods", 200, ""},
		{"proxy is not stats", cert(w.ca, "operator"), "", "GET", "/stats/summary", 403, "Forbidden"},
		{"the certificate counts", cert(w.ca, "reader"), "good", "GET", "/metrics", 403, "user=reader"},
		{"no verb", cert(w.ca, "operator"), "", "OPTIONS", "/pods", 403, "verb=,"},
		{"a stranger's certificate", cert(other, "operator"), "", "GET", "/pods", 0, ""},
		{"a stranger called as the API server", cert(other, "api"), "", "GET", "/pods", 0, ""},
		{"the API server", cert(w.ca, "api"), "", "GET", "/pods", 200, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tt.method, w.base+tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tt.token != "" {
				req.Header.Set("Authorization", "Bearer "+tt.token)
			}
			resp, err := client(tt.cert).Do(req)
			if tt.want == 0 {
				if err == nil {
					resp.Body.Close()
					t.Errorf("answered with %d", resp.StatusCode)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.want || !strings.Contains(string(body), tt.text) {
				t.Errorf("%d %q, want %d %q", resp.StatusCode, body, tt.want, tt.text)
			}
		})
	}
	rules.mu.Lock()
	defer rules.mu.Unlock()
	for _, a := range rules.requested {
		if !strings.HasSuffix(a, " nodes/n1") {
			t.Errorf("asked for %q", a)
		}
		if strings.HasPrefix(a, "api ") {
			t.Errorf("the API server had to ask itself: %q", a)
		}
	}
}
