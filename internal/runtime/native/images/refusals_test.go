package images

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestRefusals: a registry that sends the pull elsewhere without end, or that wants it to come later, gets few
// requests, and the error has the code by which the agent knows the reason. When to come again is the back-off of the
// pod's.
func TestRefusals(t *testing.T) {
	later := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(code)
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		code   codes.Code
		want   string
	}{
		"redirect loop": {func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, req.URL.Path, http.StatusTemporaryRedirect)
		}, codes.Unavailable, "stopped after 10 redirects"},
		"redirect to a file": {func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "file:///etc/passwd", http.StatusTemporaryRedirect)
		}, codes.Unavailable, "unsupported protocol scheme"},
		"too many requests":   {later(http.StatusTooManyRequests), codes.ResourceExhausted, "429 Too Many Requests"},
		"service unavailable": {later(http.StatusServiceUnavailable), codes.Unavailable, "503 Service Unavailable"},
	} {
		for _, of := range []string{"/manifests/v1", "/blobs/"} {
			t.Run(name+" of "+strings.Trim(of, "/"), func(t *testing.T) {
				reg := newRawRegistry(t)
				reg.answer = func(w http.ResponseWriter, req *http.Request, _ string, _ []byte) bool {
					if !strings.Contains(req.URL.Path, of) {
						return false
					}
					c.answer(w, req)
					return true
				}
				s := openStore(t, Config{})
				_, err := s.Pull(t.Context(), reg.image([][]byte{archiveOf(file("f", "content"))}), nil, nil)
				if status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.want) {
					t.Errorf("got %v, want %v with %q", err, c.code, c.want)
				}
				if n := reg.requests.Load(); n > 20 {
					t.Errorf("the registry got %d requests", n)
				} else {
					t.Log(n, "requests")
				}
				expectEmpty(t, s)
			})
		}
	}
}
