package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The trailers of a request reach the backend with each pair of protocols, also those of a body that a server must ask
// for, but none that frames, routes, or authenticates the request (RFC 9110, 6.5.1), or claims its origin.
func TestRequestTrailers(t *testing.T) {
	for _, protocols := range []struct {
		client, backend string
		method          string
	}{{"HTTP/1.1", "HTTP/1.1", "POST"}, {"HTTP/1.1", "HTTP/2.0", "POST"}, {"HTTP/2.0", "HTTP/1.1", "POST"},
		{"HTTP/2.0", "HTTP/2.0", "POST"}, {"HTTP/2.0", "HTTP/1.1", "DELETE"}, {"HTTP/1.1", "HTTP/1.1", "GET"}} {
		backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			fmt.Fprint(w, r.Proto, " ", string(body), " ", err, " ", r.Trailer)
		}))
		backend.Config.Protocols = &http.Protocols{}
		backend.Config.Protocols.SetUnencryptedHTTP2(true)
		backend.Config.Protocols.SetHTTP1(true)
		backend.Start()
		l := newLab(t)
		kind := ""
		if backendH2 := protocols.backend == "HTTP/2.0"; backendH2 {
			kind = "kubernetes.io/h2c"
		}
		l.service("a", kind, at(backend.URL, "pa"))
		l.ingress("x.example.com", nil, "/=a")
		l.update()
		tr := &http.Transport{Protocols: &http.Protocols{}}
		tr.Protocols.SetUnencryptedHTTP2(protocols.client == "HTTP/2.0")
		tr.Protocols.SetHTTP1(protocols.client == "HTTP/1.1")
		body, send := io.Pipe()
		r, _ := http.NewRequestWithContext(t.Context(), protocols.method, "http://"+l.http+"/", body)
		r.Host = "x.example.com"
		r.TransferEncoding = []string{"chunked"}
		r.Trailer = http.Header{"X-Sum": nil, "X-Never": nil}
		evil := []string{"Cookie", "X-Forwarded-For", "X_forwarded_for"}
		if protocols.client == "HTTP/1.1" { // a stream of HTTP/2 with these is reset by Go's server
			evil = append(evil, "Authorization", "Content-Type", "Host")
		}
		for _, name := range evil {
			r.Trailer[name] = nil
		}
		go func() {
			_, _ = io.Copy(send, strings.NewReader("body"))
			r.Trailer["X-Sum"] = []string{"one", "two"}
			for _, name := range evil {
				r.Trailer[name] = []string{"evil"}
			}
			send.Close()
		}()
		res, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(protocols, err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		want := protocols.backend + " body <nil> map[X-Never:[] X-Sum:[one two]]"
		if res.Proto != protocols.client || string(text) != want {
			t.Errorf("%v: %s %q, not %q", protocols, res.Proto, text, want)
		}
		tr.CloseIdleConnections()
		l.stop()
		backend.Close()
	}
}
