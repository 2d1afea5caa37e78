package server

import (
	"context"
	"sync"
	"time"
)

// requestContext is the context of a request. It costs little as long as no code waits for its end: a context of the
// standard library is made when Done is called first. Functions that only run at the end need none.
type requestContext struct {
	conn context.Context //nolint:containedctx // has the values, and does not end

	mu     sync.Mutex
	err    error
	inner  context.Context //nolint:containedctx // of the library; nil: not needed yet
	cancel context.CancelFunc
	after  []*afterEnd
	first  [1]*afterEnd // of after
}

// afterEnd is a function that AfterFunc was called with.
type afterEnd struct {
	of *requestContext
	f  func() // nil: it was called, or will not be
}

// Deadline implements context.Context.
func (c *requestContext) Deadline() (at time.Time, ok bool) { return at, false }

// Done implements context.Context.
func (c *requestContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancel = context.WithCancel(c.conn)
		if c.err != nil {
			c.cancel()
		}
	}
	return c.inner.Done()
}

// Err implements context.Context.
func (c *requestContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Value implements context.Context. The library finds its own context here, so that it ends derived ones without a
// goroutine.
func (c *requestContext) Value(key any) any {
	c.mu.Lock()
	in := c.inner
	c.mu.Unlock()
	if in != nil {
		return in.Value(key)
	}
	return c.conn.Value(key)
}

// AfterFunc does what context.AfterFunc does.
func (c *requestContext) AfterFunc(f func()) (stop func() bool) {
	one := &afterEnd{of: c, f: f}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		one.f = nil
		go f()
		return one.stop
	}
	if c.after == nil {
		c.after = c.first[:0]
	}
	c.after = append(c.after, one)
	return one.stop
}

// stop reports whether the function will not be called because of it.
func (a *afterEnd) stop() bool {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	stopped := a.f != nil
	a.f = nil
	return stopped
}

// end cancels the context. Only the first call has an effect.
func (c *requestContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = context.Canceled
	if c.cancel != nil {
		c.cancel()
	}
	for _, one := range c.after {
		if one.f != nil {
			go one.f()
			one.f = nil
		}
	}
	c.after = nil
}
