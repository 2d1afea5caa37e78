package server

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// Parts sets a timeout for each part of a request's body and of its response, instead of one for the whole: a client
// may be slow, but must not stop. It returns the writer for the handler, and what to call when the handler returns, and
// replaces the body of r. Bodies of HTTP/2 without a length have no timeout: they are streams of messages, perhaps (see
// Whole).
func Parts(w http.ResponseWriter, r *http.Request, timeout time.Duration) (out http.ResponseWriter, ended func()) {
	if own, ok := w.(*response); ok {
		own.patience = timeout
		return w, func() {}
	}
	if r.ProtoMajor != 1 {
		return stream(w, r, timeout)
	}
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Time{}) // that of the previous request on this connection
	if r.Body != nil && r.Body != http.NoBody {
		// The server reads the rest of the request's body before it responds.
		now := time.Now()
		_ = c.SetReadDeadline(now.Add(timeout))
		body := &patient{ReadCloser: r.Body, c: c, timeout: timeout, last: now}
		r.Body = body
		return &unhurried{ResponseWriter: w, c: c, timeout: timeout, body: body}, func() {}
	}
	return &unhurried{ResponseWriter: w, c: c, timeout: timeout}, func() {}
}

// Whole is for a handler that reads the whole body before it does anything else: each part has the timeout, also if the
// length is not known. The handler calls it before it reads, with the writer of Parts, or one that wraps it. It returns
// what ends the read that is in progress, and later ones, with os.ErrDeadlineExceeded, but for a body that has arrived.
// That may be called by any goroutine until the handler returns, and does not block.
func Whole(w http.ResponseWriter) (stop func()) {
	for {
		switch at := w.(type) {
		case interface{ whole() func() }:
			return at.whole()
		case interface{ Unwrap() http.ResponseWriter }:
			w = at.Unwrap()
		default:
			return func() {}
		}
	}
}

// patient sets a timeout for each part of a body.
type patient struct {
	io.ReadCloser
	c       *http.ResponseController
	timeout time.Duration

	mu   sync.Mutex // for the deadline; it is not held during a read
	last time.Time
	over bool // it has arrived, or was stopped
}

// Read implements io.Reader.
func (p *patient) Read(b []byte) (int, error) {
	p.mu.Lock()
	if now := time.Now(); now.Sub(p.last) > time.Second && !p.over {
		p.last = now
		_ = p.c.SetReadDeadline(now.Add(p.timeout))
	}
	p.mu.Unlock()
	n, err := p.ReadCloser.Read(b)
	if err == io.EOF { // after another error the server must not wait for the rest
		p.mu.Lock()
		p.over = true
		_ = p.c.SetReadDeadline(time.Time{})
		p.mu.Unlock()
	}
	return n, err
}

// stop ends reads.
func (p *patient) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.over = true
		_ = p.c.SetReadDeadline(time.Unix(1, 0))
	}
}

// unhurried sets a timeout for each part of a response.
type unhurried struct {
	http.ResponseWriter
	c       *http.ResponseController
	timeout time.Duration
	last    time.Time
	body    *patient // of the request; nil: there is none
}

// whole is for Whole.
func (u *unhurried) whole() func() {
	if u.body == nil {
		return func() {}
	}
	return u.body.stop
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
