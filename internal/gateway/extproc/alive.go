package extproc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// A picker with flow control may hold a request for a minute, which is no failure. A picker that hangs must not delay
// requests for as long. So a picker that has not decided after quietTime is called for its health at the same
// connection: any response, also that it has no such service, shows that its server runs. After probeTime without one
// the pick fails.
const (
	quietTime = 2 * time.Second
	probeTime = 5 * time.Second
)

var errHangs = errors.New("the picker does not respond")

// probes calls a picker for its health, at most once in quiet, however many requests wait.
type probes struct {
	quiet, limit time.Duration
	check        func(context.Context) error

	mu   sync.Mutex
	last *probe
}

// probe is one call.
type probe struct {
	began time.Time
	done  chan struct{} // closed at the end
	err   error         // set before
}

// watch calls hangs when the picker does not respond, until stop is called or ctx ends. stop reports whether hangs was
// not called.
func (p *probes) watch(ctx context.Context, hangs func()) (stop func() bool) {
	ctx, cancel := context.WithCancel(ctx)
	var over atomic.Bool
	timer := time.AfterFunc(p.quiet, func() {
		for {
			one := p.probe()
			select {
			case <-ctx.Done():
				return
			case <-one.done:
			}
			if one.err != nil {
				if ctx.Err() == nil && over.CompareAndSwap(false, true) {
					hangs()
				}
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(p.quiet):
			}
		}
	})
	return func() bool {
		timer.Stop()
		cancel()
		return over.CompareAndSwap(false, true)
	}
}

// probe returns the current call, or begins one.
func (p *probes) probe() *probe {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.last; one != nil && time.Since(one.began) < p.quiet {
		return one
	}
	one := &probe{began: time.Now(), done: make(chan struct{})}
	p.last = one
	go func() {
		defer close(one.done)
		ctx, cancel := context.WithTimeout(context.Background(), p.limit)
		defer cancel()
		one.err = p.check(ctx)
	}()
	return one
}

// health reports whether the picker's server responds, whatever it responds.
func (c *Client) health(ctx context.Context) error {
	_, err := healthv1.NewHealthClient(c.conn).Check(ctx, &healthv1.HealthCheckRequest{})
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Unavailable, codes.Canceled:
		return err
	}
	return nil
}
