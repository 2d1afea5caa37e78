package server

import (
	"io"
	"net/http"
	"time"
)

// Parts sets a timeout for each part of a request's body and of its response, instead of one for the whole: a client
// may be slow, but must not stop. It returns the writer for the handler, and what to call when the handler returns, and
// replaces the body of r. Bodies of HTTP/2 without a length have no timeout: they are streams of messages, perhaps.
func Parts(w http.ResponseWriter, r *http.Request, timeout time.Duration) (out http.ResponseWriter, ended func()) {
	if r.ProtoMajor != 1 {
		return stream(w, r, timeout)
	}
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Time{}) // that of the previous request on this connection
	if r.Body != nil && r.Body != http.NoBody {
		// The server reads the rest of the request's body before it responds.
		_ = c.SetReadDeadline(time.Now().Add(timeout))
		r.Body = &patient{ReadCloser: r.Body, c: c, timeout: timeout}
	}
	return &unhurried{ResponseWriter: w, c: c, timeout: timeout}, func() {}
}

// patient sets a timeout for each part of a body.
type patient struct {
	io.ReadCloser
	c       *http.ResponseController
	timeout time.Duration
	last    time.Time
}

// Read implements io.Reader.
func (p *patient) Read(b []byte) (int, error) {
	if now := time.Now(); now.Sub(p.last) > time.Second {
		p.last = now
		_ = p.c.SetReadDeadline(now.Add(p.timeout))
	}
	n, err := p.ReadCloser.Read(b)
	if err == io.EOF { // after another error the server must not wait for the rest
		_ = p.c.SetReadDeadline(time.Time{})
	}
	return n, err
}

// unhurried sets a timeout for each part of a response.
type unhurried struct {
	http.ResponseWriter
	c       *http.ResponseController
	timeout time.Duration
	last    time.Time
}

// Write implements http.ResponseWriter.
func (u *unhurried) Write(b []byte) (int, error) {
	if now := time.Now(); now.Sub(u.last) > time.Second {
		u.last = now
		_ = u.c.SetWriteDeadline(now.Add(u.timeout))
	}
	return u.ResponseWriter.Write(b)
}

// Unwrap lets a ResponseController find what the server can do.
func (u *unhurried) Unwrap() http.ResponseWriter { return u.ResponseWriter }
