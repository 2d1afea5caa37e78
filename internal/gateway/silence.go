package gateway

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// silence ends an attempt when its backend is silent for too long. Until the response begins, the time in which the
// client sends its body does not count: an upload may take longer.
type silence struct {
	limit time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	started bool // the response has begun
	over    bool
}

func newSilence(limit time.Duration, end func()) *silence {
	return &silence{limit: limit, timer: time.AfterFunc(limit, end)}
}

// heard begins the time anew.
func (s *silence) heard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.timer.Reset(s.limit)
	}
}

// begun is called when the response has begun.
func (s *silence) begun() {
	s.mu.Lock()
	s.started = true
	s.mu.Unlock()
	s.heard()
}

func (s *silence) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.timer.Stop()
}

// reads reports that a read of the client's body begins, or has ended.
func (s *silence) reads(begins bool) {
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

// send has the body of a request observed.
func (s *silence) send(r *http.Request) {
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
	of *silence
}

// Read implements io.Reader.
func (b *upload) Read(p []byte) (int, error) {
	b.of.reads(true)
	defer b.of.reads(false)
	return b.ReadCloser.Read(p)
}
