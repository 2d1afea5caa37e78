package gateway

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// respondWith is a backend that answers each request, which fits into one packet, with a text, and closes the
// connection.
func respondWith(t *testing.T, answer string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					_, _ = io.WriteString(c, answer)
				}
			}()
		}
	}()
	return ln.Addr().String()
}

// A response without a Content-Type stays so. The server guesses text/html for what looks like it, and a browser would
// run the scripts of a file that a user has uploaded.
func TestNoContentTypeIsAdded(t *testing.T) {
	l := newLab(t)
	const page = "<html><script>alert(1)</script></html>"
	l.service("a", "", at(respondWith(t, "HTTP/1.1 200 OK\r\nX-Content-Type-Options: nosniff\r\n\r\n"+page), "pa"))
	l.ingress("", nil, "/=a")
	l.update()
	h2c := &http.Transport{Protocols: new(http.Protocols)}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	defer h2c.CloseIdleConnections()
	http1 := &http.Transport{}
	defer http1.CloseIdleConnections()
	for what, c := range map[string]struct {
		through *http.Transport
		upgrade bool
	}{"HTTP/1.1": {through: http1}, "HTTP/2": {through: h2c}, "an upgrade": {http1, true}} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.http+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.upgrade {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "websocket")
		}
		res, err := c.through.RoundTrip(r)
		if err != nil {
			t.Fatal(what, err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if _, has := res.Header["Content-Type"]; has || err != nil || string(text) != page {
			t.Errorf("%s: %v %q %v", what, res.Header, text, err)
		}
	}
}

// A target in absolute form needs no path (RFC 9110, 4.2.3).
func TestTargetWithoutPath(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	for target, want := range map[string]string{"http://x.example.com": "a GET / host=x.example.com",
		"http://x.example.com?q": "a GET /?q host=x.example.com", "*": "Bad Request"} {
		c, err := net.Dial("tcp", l.http)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "GET "+target+" HTTP/1.1\r\nHost: x.example.com\r\nConnection: close\r\n\r\n")
		text, _ := io.ReadAll(c)
		_ = c.Close()
		if !strings.Contains(string(text), want) {
			t.Errorf("%s: %q", target, text)
		}
	}
}

// A client of HTTP/1.0 takes the end of the connection for that of the response: if it is not complete, the connection
// is reset.
func TestIncompleteResponseForHTTP10(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(respondWith(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"), "pa"))
	l.service("b", "",
		at(respondWith(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), "pb"))
	in := l.ingress("", nil, "/=a", "/whole=b")
	in.Spec.TLS = nil
	l.update()
	for what, dial := range map[string]func() (net.Conn, error){
		"plain": func() (net.Conn, error) { return net.Dial("tcp", l.http) },
		"TLS": func() (net.Conn, error) {
			return tls.Dial("tcp", l.https, &tls.Config{InsecureSkipVerify: true})
		},
	} {
		get := func(path string) (string, error) {
			c, err := dial()
			if err != nil {
				t.Fatal(what, err)
			}
			defer c.Close()
			_, _ = io.WriteString(c, "GET "+path+" HTTP/1.0\r\n\r\n")
			text, err := io.ReadAll(c)
			return string(text), err
		}
		if text, err := get("/whole"); err != nil || !strings.HasSuffix(text, "\r\n\r\nhello") {
			t.Errorf("%s: a whole response: %q %v", what, text, err)
		}
		if text, err := get("/"); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: %q %v", what, text, err)
		}
	}
}
