package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// raw sends bytes on a connection of its own, and returns the first response.
func (l *lab) raw(t *testing.T, send string) *http.Response {
	t.Helper()
	c, err := net.Dial("tcp", l.http)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() { _, _ = io.WriteString(c, send) }()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%.80q: %v", send, err)
	}
	return res
}

// A body that is not valid is the client's mistake: it gets 400 instead of 502, which is about the backend.
func TestBodiesThatAreNotValid(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer backend.Close()
	l := newLab(t)
	l.service("a", "", at(backend.URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	for body, want := range map[string]int{
		"3;x=y\r\nabc\r\n0\r\n\r\n": 200, "3\nabc\n0\n\n": 400, "FFFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n": 400,
		"-3\r\nabc\r\n0\r\n\r\n": 400, "3;" + strings.Repeat("x", 20_000) + "\r\nabc\r\n0\r\n\r\n": 400,
		"3\r\nabcdef\r\n0\r\n\r\n": 400, "3 \r\nabc\r\n0\r\n\r\n": 200, "0x3\r\nabc\r\n0\r\n\r\n": 400,
	} {
		res := l.raw(t, "POST / HTTP/1.1\r\nHost: x.example.com\r\nTransfer-Encoding: chunked\r\n\r\n"+body)
		if res.StatusCode != want {
			t.Errorf("%.40q: %s", body, res.Status)
		}
	}
}
