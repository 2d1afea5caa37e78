package podstorage

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
)

// An empty path stays empty, because the proxy then redirects GET and HEAD to the URL with a slash.
func TestJoinPath(t *testing.T) {
	for in, want := range map[string]string{"": "", "/": "/", "/a": "/a", "/a/": "/a/", "/../a/./b/": "/a/b/"} {
		if got := joinPath(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// proxyErrors records errors of the proxy itself.
type proxyErrors struct{ err error }

func (*proxyErrors) Object(int, runtime.Object) {}
func (w *proxyErrors) Error(err error)          { w.err = err }

const proxyPrefix = "/api/v1/namespaces/ns/pods/p/proxy"

// proxied serves backend behind a proxy, below proxyPrefix.
func proxied(t *testing.T, backend http.HandlerFunc) (proxy, behind *httptest.Server, answers *proxyErrors) {
	t.Helper()
	behind = httptest.NewServer(backend)
	t.Cleanup(behind.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	answers = &proxyErrors{}
	proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		location, err := url.Parse(behind.URL)
		if err != nil {
			t.Error(err)
		}
		location.Path = joinPath(strings.TrimPrefix(r.URL.Path, proxyPrefix))
		passThrough(location, transport, answers).ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	return proxy, behind, answers
}

// Links of a page, and redirects, stay behind the proxy.
func TestProxyRewrites(t *testing.T) {
	proxy, _, _ := proxied(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/page":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprintf(w,
				`<a href="/other">o</a><a href="near">n</a><img src="http://%s/i.png"/><a href="https://far.example/x">f</a>`, r.Host)
		case "/text":
			w.Header().Set("Content-Type", "text/plain")
			fmt.Fprintf(w, `<a href="/other"> %s %s`, r.Header.Get("X-Forwarded-Uri"), r.URL.RawQuery)
		case "/moved":
			w.Header().Set("Location", "/there?x=1")
			w.WriteHeader(http.StatusFound)
		}
	})
	get := func(path string) (*http.Response, string) {
		resp, err := http.DefaultTransport.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet,
			proxy.URL+proxyPrefix+path, nil))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(body)
	}
	_, page := get("/page")
	for _, want := range []string{`href="` + proxyPrefix + `/other"`, `href="near"`, proxyPrefix + `/i.png`,
		`href="https://far.example/x"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s: %s", want, page)
		}
	}
	if _, text := get("/text?a=%2F&b"); text != `<a href="/other"> `+proxyPrefix+`/text a=%2F&b` {
		t.Errorf("what is not a page is %s", text)
	}
	if resp, _ := get("/moved"); resp.StatusCode != http.StatusFound ||
		resp.Header.Get("Location") != proxyPrefix+"/there?x=1" {
		t.Errorf("sent to %s, %d", resp.Header.Get("Location"), resp.StatusCode)
	}
}

// An answer is passed on while it is written.
func TestProxyStreams(t *testing.T) {
	more := make(chan struct{})
	proxy, _, _ := proxied(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "one")
		_ = http.NewResponseController(w).Flush()
		<-more
		fmt.Fprintln(w, "two")
	})
	resp, err := http.DefaultTransport.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet,
		proxy.URL+proxyPrefix+"/", nil))
	if err != nil {
		close(more)
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer := bufio.NewReader(resp.Body)
	line, err := answer.ReadString('\n')
	if line != "one\n" {
		t.Errorf("the first line is %q, %v", line, err)
	}
	close(more)
	if rest, err := io.ReadAll(answer); string(rest) != "two\n" || err != nil {
		t.Errorf("the rest is %q, %v", rest, err)
	}
}

// A websocket, or any other upgrade, becomes a connection of its own.
func TestProxyUpgrades(t *testing.T) {
	proxy, _, answers := proxied(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.URL.RequestURI() != "/ws?q=1" {
			t.Errorf("asked for %s, upgrade %q", r.URL.RequestURI(), r.Header.Get("Upgrade"))
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprintf(rw, "echo %s", line)
		_ = rw.Flush()
	})
	conn, err := net.Dial("tcp", proxy.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s/ws?q=1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		proxyPrefix)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v, %v", resp, err, answers.err)
	}
	_ = resp.Body.Close()
	fmt.Fprint(conn, "hello\n")
	if line, err := r.ReadString('\n'); line != "echo hello\n" {
		t.Errorf("answered %q, %v", line, err)
	}
}

// Queries that are invalid as a part of a URL reach the backend as they are, also those of upgrades.
func TestProxyHostileQueries(t *testing.T) {
	for _, query := range []string{"a#%zz", "a#b", "#", "%zz", "%", "a=%00;&&\\", "a[]={|}^`"} {
		for _, upgrade := range []string{"", "Connection: Upgrade\r\nUpgrade: websocket\r\n"} {
			proxy, _, answers := proxied(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Query", r.URL.RawQuery)
				w.WriteHeader(http.StatusTeapot)
			})
			conn, err := net.Dial("tcp", proxy.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "GET %s/x?%s HTTP/1.1\r\nHost: x\r\n%s\r\n", proxyPrefix, query, upgrade)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Errorf("query %q, upgrade %v: %v, %v", query, upgrade != "", err, answers.err)
				continue
			}
			_ = resp.Body.Close()
			if got := resp.Header.Get("Query"); resp.StatusCode != http.StatusTeapot || got != query {
				t.Errorf("query %q, upgrade %v: %d, the backend got %q", query, upgrade != "", resp.StatusCode, got)
			}
		}
	}
}

// Nothing listens: the client gets upstream's message.
func TestProxyWithoutListener(t *testing.T) {
	proxy, behind, answers := proxied(t, func(http.ResponseWriter, *http.Request) {})
	behind.Close()
	resp, err := http.DefaultTransport.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet,
		proxy.URL+proxyPrefix+"/", nil))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	if answers.err != nil && !apierrors.IsServiceUnavailable(answers.err) {
		t.Errorf("the proxy reported %v", answers.err)
	}
	if answers.err == nil && (resp.StatusCode != http.StatusServiceUnavailable ||
		!strings.Contains(string(body), "error trying to reach service")) {
		t.Errorf("answered %d %s", resp.StatusCode, body)
	}
}
