package inference

import (
	"context"
	"slices"
	"sync"
	"time"
)

// places limits how many large messages are in memory at once. Waiting connections are served in order, and for a
// bounded time: while one waits, a sender keeps its place for one turn only.
type places struct {
	most int
	turn time.Duration

	mu    sync.Mutex
	held  []*place // by the time when they were taken
	queue []*placeWaiter
}

// deadlined is a connection whose reads can be ended. The reader gets the error.
type deadlined interface{ SetReadDeadline(at time.Time) error }

// place is that of one message.
type place struct {
	since time.Time
	conn  deadlined // nil: the message has been read, or its time is over
}

type placeWaiter struct {
	got  chan *place // capacity 1
	conn deadlined
}

// take waits for a place, or for ctx. From then on the message has messageTime, or a turn while others wait; the read
// deadline of conn is set here until read or give are called.
func (s *places) take(ctx context.Context, conn deadlined) (*place, error) {
	s.mu.Lock()
	if len(s.held) < s.most {
		defer s.mu.Unlock()
		return s.hold(conn), nil
	}
	w := &placeWaiter{make(chan *place, 1), conn}
	s.queue = append(s.queue, w)
	for {
		timer := time.NewTimer(s.press())
		s.mu.Unlock()
		select {
		case p := <-w.got:
			timer.Stop()
			return p, nil
		case <-timer.C:
			s.mu.Lock()
		case <-ctx.Done():
			timer.Stop()
			s.leave(w)
			return nil, ctx.Err()
		}
	}
}

// hold adds a place. The lock is held.
func (s *places) hold(conn deadlined) *place {
	p := &place{time.Now(), conn}
	_ = conn.SetReadDeadline(p.since.Add(messageTime))
	s.held = append(s.held, p)
	return p
}

// press revokes the places that were held for a turn, and returns when to look again. The lock is held.
func (s *places) press() time.Duration {
	for _, p := range s.held {
		if p.conn == nil {
			continue
		}
		if left := s.turn - time.Since(p.since); left > 0 {
			return left
		}
		_ = p.conn.SetReadDeadline(time.Unix(1, 0))
		p.conn = nil
	}
	return s.turn
}

// read reports that a message was received: its place is not revoked any more.
func (s *places) read(p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.conn = nil
}

// give passes a place to the connection that has waited for the longest time.
func (s *places) give(p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = slices.DeleteFunc(s.held, func(one *place) bool { return one == p })
	if len(s.queue) > 0 {
		w := s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1)
		w.got <- s.hold(w.conn)
	}
}

// leave ends a wait; a place that was assigned at the same moment is passed on.
func (s *places) leave(w *placeWaiter) {
	s.mu.Lock()
	s.queue = slices.DeleteFunc(s.queue, func(one *placeWaiter) bool { return one == w })
	s.mu.Unlock()
	select {
	case p := <-w.got:
		s.give(p)
	default:
	}
}
