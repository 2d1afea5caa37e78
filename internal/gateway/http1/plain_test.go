package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// FuzzPlain compares a response that this package reads with what net/http reads.
func FuzzPlain(f *testing.F) {
	for _, text := range []string{fine, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nA: b\r\na:  c \r\nX:\r\n\r\nokHTTP/1.1",
		"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", "HTTP/1.1 299 a b\r\nContent-Length: 18446744073709551616\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", "HTTP/1.1 204 x\r\nContent-Length: 1\r\n\r\nx",
		"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nA: b\r\n c\r\n\r\na",
		"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\na", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r := &http.Request{Method: http.MethodGet}
		mine := bufio.NewReaderSize(bytes.NewReader(text), 4<<10)
		_, _ = mine.Peek(1)
		before := mine.Buffered()
		got := readPlain(mine, r)
		if got == nil {
			if mine.Buffered() != before {
				t.Fatal("bytes of a response were read that is left to net/http")
			}
			return
		}
		theirs := bufio.NewReader(bytes.NewReader(text))
		want, err := http.ReadResponse(theirs, r)
		if err != nil {
			t.Fatalf("%q: net/http refuses it: %v", text, err)
		}
		if got.Status != want.Status || got.StatusCode != want.StatusCode || got.Proto != want.Proto ||
			got.ContentLength != want.ContentLength || got.Close != want.Close || want.Trailer != nil ||
			!maps.EqualFunc(got.Header, want.Header, slices.Equal) {
			t.Fatalf("%q: %+v, not %+v", text, got, want)
		}
		a, errA := io.ReadAll(&known{mine, got.ContentLength})
		b, errB := io.ReadAll(want.Body)
		if !bytes.Equal(a, b) || !errors.Is(errA, errB) {
			t.Fatalf("%q: the body is %q %v, not %q %v", text, a, errA, b, errB)
		}
		a, _ = io.ReadAll(mine)
		b, _ = io.ReadAll(theirs)
		if !bytes.Equal(a, b) {
			t.Fatalf("%q: after it %q, not %q", text, a, b)
		}
	})
}

// A plain response is read here, and others by net/http.
func TestPlain(t *testing.T) {
	for text, plain := range map[string]bool{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: a\r\n\r\nok":                   true,
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n":                                            false, // the rest comes later
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n":          false,
		"HTTP/1.1 200 OK\r\n\r\n":                                                             false,
		"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok":                                      false,
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok":         false,
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok":                 false,
		"HTTP/1.1 200 OK\nContent-Length: 2\r\n\r\nok":                                        false,
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + strings.Repeat("A: b\r\n", 100) + "\r\n": false,
	} {
		b := bufio.NewReader(strings.NewReader(text))
		_, _ = b.Peek(1)
		if got := readPlain(b, &http.Request{Method: http.MethodGet}); (got != nil) != plain {
			t.Errorf("%.60q: %+v", text, got)
		}
	}
}
