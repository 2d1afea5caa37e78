package server_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A client that waits for an answer gets it at once, also if what it sent has not the end of a plain request: lines
// that end with LF alone, an empty line before a request (RFC 9112, 2.2), HTTP/0.9, TLS, nonsense.
func TestOddRequestsAreAnsweredAtOnce(t *testing.T) {
	l := newLab(t, http.HandlerFunc(echo))
	plain := "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"
	for send, want := range map[string]int{
		"GET /echo HTTP/1.1\nHost: x\n\n":             200,
		"GET /echo HTTP/1.1\r\nHost: x\n\n":           200,
		"GET /echo HTTP/1.1\r\nHost: x\r\nA: b\r\n\n": 200,
		"GET /echo HTTP/1.0\n\n":                      200,
		"GET /echo HTTP/1.0\r\n\r\n":                  200,
		"\r\n" + plain:                                200,
		"\r\n\r\n" + plain:                            400,
		"GET /echo\r\n":                               400,
		"GET /echo\n":                                 400,
		"nonsense\n":                                  400,
		"\x16\x03\x01\x00\xa5\x01\x00":                400,
		"\n":                                          400,
	} {
		for _, size := range []int{1, 2, len(send)} {
			c, r := l.dial(t)
			_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // less than the time for a head
			go func() {
				for rest := send; rest != ""; {
					n := min(size, len(rest))
					if _, err := io.WriteString(c, rest[:n]); err != nil {
						return // it is refused already
					}
					rest = rest[n:]
				}
			}()
			if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != want {
				t.Errorf("%q in pieces of %d: %v, %v", send, size, res, err)
			}
		}
	}
}

// A client may end the body of a request with an empty line, and send another request later.
func TestEmptyLineAfterBody(t *testing.T) {
	l := newLab(t, http.HandlerFunc(echo))
	c, _ := l.dial(t)
	one := "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello\r\n"
	if _, err := io.WriteString(c, strings.Repeat(one, 3)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	for i := range 3 {
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("answer %d: %v, %v", i, res, err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
	}
}
