package gateway

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// idleLimit ends an attempt when its backend sends nothing for too long. Until the response begins, the time in which
// the client sends its body does not count: an upload may take longer.
type idleLimit struct {
	limit time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	started bool // the response has begun
	over    bool
}

func newIdleLimit(limit time.Duration, end func()) *idleLimit {
	return &idleLimit{limit: limit, timer: time.AfterFunc(limit, end)}
}

// restart begins the time anew.
func (s *idleLimit) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.timer.Reset(s.limit)
	}
}

// begun is called when the response has begun.
func (s *idleLimit) begun() {
	s.mu.Lock()
	s.started = true
	s.mu.Unlock()
	s.restart()
}

func (s *idleLimit) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.timer.Stop()
}

// reads reports that a read of the client's body begins, or has ended.
func (s *idleLimit) reads(begins bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over || s.started:
	case begins:
		s.timer.Stop()
	default:
		s.timer.Reset(s.limit)
	}
}

// send counts the reads of the body of a request.
func (s *idleLimit) send(r *http.Request) {
	again := r.GetBody
	r.Body = &upload{r.Body, s}
	r.GetBody = func() (io.ReadCloser, error) {
		body, err := again()
		return &upload{body, s}, err
	}
}

// upload is the body of a request.
type upload struct {
	io.ReadCloser
	of *idleLimit
}

// Read implements io.Reader.
func (b *upload) Read(p []byte) (int, error) {
	b.of.reads(true)
	defer b.of.reads(false)
	return b.ReadCloser.Read(p)
}
