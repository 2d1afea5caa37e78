package server

import (
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// stall ends a part of an HTTP/2 stream that takes too long. A stream may rest between two parts for any time: a
// deadline of the stream would end it then, too.
type stall struct {
	timeout time.Duration
	end     func() // ends the part that is in progress

	mu    sync.Mutex
	timer *time.Timer
	armed bool      // the timer runs
	since time.Time // when the part in progress began; zero: there is none
	ended bool      // a part was ended
	over  bool      // the handler has returned
}

// begin is called before a part.
func (s *stall) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.since = time.Now()
	switch {
	case s.timer == nil:
		s.timer = time.AfterFunc(s.timeout, s.check)
	case !s.armed:
		s.timer.Reset(s.timeout)
	}
	s.armed = true
}

// done is called after a part. It reports whether the part was ended.
func (s *stall) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Time{}
	return s.ended
}

// check is called by the timer.
func (s *stall) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	if s.over || s.since.IsZero() {
		return
	}
	if left := s.timeout - time.Since(s.since); left > 0 {
		s.armed = true
		s.timer.Reset(left)
		return
	}
	s.ended = true
	s.end()
}

// stop ends the part in progress, and later ones.
func (s *stall) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over && !s.ended {
		s.ended = true
		s.end()
	}
}

// close is called when the handler returns. From then on nothing is ended.
func (s *stall) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over = true; s.timer != nil {
		s.timer.Stop()
	}
}

// streamWriter limits how long a client may take no byte of a response of HTTP/2.
type streamWriter struct {
	http.ResponseWriter
	c     *http.ResponseController
	stall stall
	body  *streamBody // of the request; nil: there is none
}

// whole is for Whole.
func (w *streamWriter) whole() func() {
	if w.body == nil {
		return func() {}
	}
	w.body.timed = true
	return w.body.stall.stop
}

// Write implements http.ResponseWriter.
func (w *streamWriter) Write(b []byte) (int, error) {
	w.stall.begin()
	defer w.stall.done()
	return w.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController.
func (w *streamWriter) FlushError() error {
	w.stall.begin()
	defer w.stall.done()
	return w.c.Flush()
}

// Unwrap lets a ResponseController find what the server can do.
func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// close is called when the handler returns. The server then sends what it still has.
func (w *streamWriter) close() {
	w.stall.close()
	_ = w.c.SetWriteDeadline(time.Now().Add(w.stall.timeout))
}

// streamBody limits how long a client may send no byte of a body of known length. One without is a stream of messages,
// perhaps, in which a client may be silent, unless the handler wants the whole.
type streamBody struct {
	io.ReadCloser
	timed bool
	stall stall
}

// Read implements io.Reader. It may be called after the handler has returned.
func (b *streamBody) Read(p []byte) (int, error) {
	if !b.timed {
		return b.ReadCloser.Read(p)
	}
	b.stall.begin()
	n, err := b.ReadCloser.Read(p)
	if b.stall.done() && err != nil {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// stream limits the parts of an HTTP/2 stream.
func stream(w http.ResponseWriter, r *http.Request, timeout time.Duration) (http.ResponseWriter, func()) {
	out := &streamWriter{ResponseWriter: w, c: http.NewResponseController(w)}
	out.stall = stall{timeout: timeout, end: func() { _ = out.c.SetWriteDeadline(time.Unix(1, 0)) }}
	if r.ContentLength == 0 || r.Body == nil {
		return out, out.close
	}
	body := &streamBody{ReadCloser: r.Body, timed: r.ContentLength > 0}
	body.stall = stall{timeout: timeout, end: func() { _ = body.ReadCloser.Close() }}
	r.Body, out.body = body, body
	return out, func() { body.stall.close(); out.close() }
}
