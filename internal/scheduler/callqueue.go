package scheduler

import "sync"

// callQueue runs API calls in the background: calls for one key in order, so that an older status
// cannot overwrite a newer one, calls for different keys in parallel up to a limit. A burst of pods
// needs only as many goroutines as there are calls in flight, not one per pod.
type callQueue[K comparable] struct {
	limit   int
	mu      sync.Mutex
	ready   []call[K]      // at most one for a key, oldest first
	tails   map[K][]func() // following calls; a key is present while it has a call that is ready or running
	workers int
	done    sync.WaitGroup
}

type call[K comparable] struct {
	key K
	f   func()
}

func newCallQueue[K comparable](limit int) *callQueue[K] {
	return &callQueue[K]{limit: limit, tails: map[K][]func(){}}
}

// Do runs f after all earlier calls for the same key.
func (s *callQueue[K]) Do(key K, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tail, busy := s.tails[key]; busy {
		s.tails[key] = append(tail, f)
		return
	}
	s.tails[key] = nil
	s.ready = append(s.ready, call[K]{key, f})
	if s.workers < s.limit {
		s.workers++
		s.done.Go(s.work)
	}
}

// work runs calls until none is ready.
func (s *callQueue[K]) work() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ready) > 0 {
		c := s.ready[0]
		s.ready[0] = call[K]{}
		s.ready = s.ready[1:]
		s.mu.Unlock()
		c.f()
		s.mu.Lock()
		if tail := s.tails[c.key]; len(tail) > 0 {
			s.ready, s.tails[c.key] = append(s.ready, call[K]{c.key, tail[0]}), tail[1:]
		} else {
			delete(s.tails, c.key)
		}
	}
	s.workers--
}

// Wait returns when no call is running.
func (s *callQueue[K]) Wait() { s.done.Wait() }
