package grpcstream

import (
	"container/list"
	"sync"
)

// budget bounds the bytes of messages. When it is spent, the stream that has not made progress for the longest time
// loses its message: clients that begin messages and do not end them cannot keep others from being served.
type budget struct {
	mu   sync.Mutex
	left int64
	all  list.List // of *share, the longest without progress first
}

// share is what one stream has of the budget.
type share struct {
	of    *budget
	held  int64
	at    *list.Element // in of.all; nil: it holds nothing
	lost  bool          // it may hold nothing any more
	evict func()        // ends the stream; called without locks
}

// take takes n bytes more. false: the share is lost, or the others have all made progress since this one has.
func (s *share) take(n int64) bool {
	b := s.of
	b.mu.Lock()
	var evicted []*share
	for !s.lost && b.left < n {
		first := b.all.Front()
		if first == nil {
			break
		}
		victim, _ := first.Value.(*share)
		if victim == s {
			break
		}
		victim.lost = true
		b.release(victim)
		evicted = append(evicted, victim)
	}
	ok := !s.lost && b.left >= n
	if ok {
		b.left -= n
		s.held += n
		if s.at == nil {
			s.at = b.all.PushBack(s)
		}
	}
	b.mu.Unlock()
	for _, v := range evicted {
		v.evict()
	}
	return ok
}

// moved notes progress.
func (s *share) moved() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.at != nil {
		s.of.all.MoveToBack(s.at)
	}
}

// free gives all back.
func (s *share) free() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.release(s)
}

func (b *budget) release(s *share) {
	if s.at == nil {
		return
	}
	b.left += s.held
	b.all.Remove(s.at)
	s.held, s.at = 0, nil
}
