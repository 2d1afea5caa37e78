package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// conn is a client that takes little of the processors: a request is bytes that were made before.
type conn struct {
	at string
	c  net.Conn
	r  *bufio.Reader
}

// answer is what came: the time to the first byte of the body, and to its end.
type answer struct {
	status      int
	first, took time.Duration
}

// request makes a request of completions below a path prefix.
func request(prefix string, body string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s/v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\n\r\n%s", prefix, len(body), body)
	return b.Bytes()
}

// body makes a request's body of so many bytes; unlike: prompts with different names share nothing.
func body(unlike string, size int) string {
	b := fmt.Sprintf(`{"model":"m","max_tokens":1,"prompt":"%s `, unlike)
	if n := size - len(b) - 2; n > 0 {
		b += strings.Repeat("word ", n/5+1)[:n]
	}
	return b + `"}`
}

func (c *conn) close() {
	if c.c != nil {
		_ = c.c.Close()
		c.c = nil
	}
}

// send sends a request and reads the head of its answer.
func (c *conn) send(req []byte) (*http.Response, error) {
	if c.c == nil {
		to, err := net.DialTimeout("tcp", c.at, 10*time.Second)
		if err != nil {
			return nil, err
		}
		c.c, c.r = to, bufio.NewReader(to)
	}
	if _, err := c.c.Write(req); err != nil {
		c.close()
		return nil, err
	}
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.close()
	}
	return res, err
}

// roundTrip sends a request and reads the response.
func (c *conn) roundTrip(req []byte) (a answer, err error) {
	began := time.Now()
	res, err := c.send(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = res.Body.Close() }()
	a.status = res.StatusCode
	var one [1]byte
	if _, err = io.ReadFull(res.Body, one[:]); err == nil {
		a.first = time.Since(began)
		_, err = io.Copy(io.Discard, res.Body)
	}
	a.took = time.Since(began)
	if err != nil && !errors.Is(err, io.EOF) {
		c.close()
		return a, err
	}
	return a, nil
}
