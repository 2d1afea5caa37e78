package scheduler

import "sync"

// callQueue runs API calls in the background: calls for one key in order, so that an older status
// cannot overwrite a newer one, calls for different keys in parallel up to a limit.
type callQueue[K comparable] struct {
	slots chan struct{}
	mu    sync.Mutex
	tails map[K][]func() // a key is present while its calls run
	done  sync.WaitGroup
}

func newCallQueue[K comparable](limit int) *callQueue[K] {
	return &callQueue[K]{slots: make(chan struct{}, limit), tails: map[K][]func(){}}
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
	s.done.Go(func() { s.run(key, f) })
}

func (s *callQueue[K]) run(key K, f func()) {
	for f != nil {
		s.slots <- struct{}{}
		f()
		<-s.slots
		s.mu.Lock()
		if tail := s.tails[key]; len(tail) > 0 {
			f, s.tails[key] = tail[0], tail[1:]
		} else {
			f = nil
			delete(s.tails, key)
		}
		s.mu.Unlock()
	}
}

// Wait returns when no call is running.
func (s *callQueue[K]) Wait() { s.done.Wait() }
