package http1

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Whatever a request has, the backend reads one request, and the same.
func FuzzHead(f *testing.F) {
	f.Add("GET", "/", "a=b", "x.example.com", "X-A", "1", "body")
	f.Add("GET / HTTP/1.1\r\nevil: 1\r\nx:", "/", "", "x", "X", "y", "")
	f.Add("POST", "/a b", "c d", "x\r\nevil: 1", "X\r\nevil", "y\r\n\r\nGET /evil HTTP/1.1\r\n\r\n", "b")
	f.Add("GET", "//evil", "", "x:80", "content-length", "44", "")
	f.Add("PUT", "/%0d%0a", "%20", "é", "transfer-encoding", "chunked", "0\r\n\r\n")
	f.Add("GET", "*", " HTTP/1.1", "[::1]:80", "Trailer", "x", "")
	f.Fuzz(func(t *testing.T, method, path, query, host, name, value, body string) {
		r := &http.Request{Method: method, Host: host, Header: http.Header{name: {value}},
			URL: &url.URL{Scheme: "http", Host: "10.0.0.1:80", Path: path, RawQuery: query}}
		if body != "" {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		}
		head, err := appendHead(nil, r)
		if err != nil {
			return
		}
		all := bufio.NewReader(bytes.NewReader(append(head, body...)))
		got, err := http.ReadRequest(all)
		if err != nil {
			// net/http's server is stricter than what is only a name or a target; more than one line it must not be.
			if n := bytes.Count(head, []byte("\r\n\r\n")); n != 1 || bytes.Count(head, []byte("\n")) > 5 {
				t.Fatalf("%q: %v", head, err)
			}
			return
		}
		if want := cmp.Or(method, "GET"); got.Method != want || got.RequestURI != r.URL.RequestURI() ||
			len(got.TransferEncoding) > 0 || len(got.Header) > 2 {
			t.Fatalf("%q was read as %v", head, got)
		}
		text, err := io.ReadAll(got.Body)
		if err != nil || string(text) != body {
			t.Fatalf("the body is %q, want %q: %v", text, body, err)
		}
		if rest, _ := io.ReadAll(all); len(rest) > 0 {
			t.Fatalf("%q came after the request %q", rest, head)
		}
	})
}

// Whatever a backend answers, the request ends, and the next one does not get what belonged to this.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{fine, fine + fine, "HTTP/1.1 100 Continue\r\n\r\n" + fine,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", "HTTP/1.1 101 x\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 204 x\r\n\r\nx",
		"HTTP/1.1 200 OK\r\n\r\nabc", "\r\n", "HTTP/1.1 200 OK\nA:b\n\n"} {
		f.Add([]byte(text), true)
		f.Add([]byte(text), false)
	}
	f.Fuzz(func(t *testing.T, text []byte, head bool) {
		dials := 0
		c := New(Config{MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096,
			Dial: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				dials++
				first := dials == 1
				go func() {
					defer far.Close()
					r := bufio.NewReader(far)
					for {
						if _, err := http.ReadRequest(r); err != nil {
							return
						}
						if !first {
							_, _ = io.WriteString(far, "HTTP/1.1 299 Mine\r\nContent-Length: 2\r\n\r\nok")
							continue
						}
						if _, err := far.Write(text); err != nil {
							return
						}
						return
					}
				}()
				return near, nil
			}})
		defer c.CloseIdleConnections()
		method := "GET"
		if head {
			method = "HEAD"
		}
		_ = roundTrip(c, request(t.Context(), method, "/", ""))
		if got := roundTrip(c, request(t.Context(), "GET", "/", "")); got != "299 ok" {
			// The connection of the first request was kept: the backend has closed it, and a GET is sent again.
			t.Fatalf("the second request got %q after %q", got, text)
		}
	})
}
