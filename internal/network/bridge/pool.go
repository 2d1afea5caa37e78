package bridge

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// poolIdle is the time without requests after which a grown pool shrinks.
const poolIdle = 30 * time.Second

// poolPause is the delay before the pool refills while at least half of its places are left: it
// leaves the CPUs and the kernel's lock for network devices to the pod that took a place.
const poolPause = 50 * time.Millisecond

// pool keeps places ready, so that attaching a pod changes no device. One goroutine fills it.
// Its size doubles when a caller finds it empty, and falls back when there are no requests. While
// the pool is full and small, the goroutine sleeps.
//
//	take ──▶ ready places ◀── fill, one at a time ◀── a pause, while half are left ◀── wake
//	  └─ empty: grow, the caller makes its own
type pool struct {
	make     func(context.Context) (*place, error)
	drop     func(*place)
	min, max int

	mu    sync.Mutex
	ready []*place
	size  int // wanted

	wake chan struct{} // capacity 1
	done chan struct{}
	stop context.CancelFunc
}

func startPool(ctx context.Context, maxSize int, makePlace func(context.Context) (*place, error),
	drop func(*place)) *pool {
	p := &pool{make: makePlace, drop: drop, min: min(2, maxSize), max: maxSize, wake: make(chan struct{}, 1),
		done: make(chan struct{})}
	p.size = p.min
	ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	go p.run(ctx)
	return p
}

// take returns the oldest place, or nil if none is ready.
func (p *pool) take() *place {
	p.mu.Lock()
	var got *place
	if len(p.ready) > 0 {
		got, p.ready = p.ready[0], p.ready[1:]
	} else {
		p.size = min(p.max, max(1, p.size*2))
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return got
}

func (p *pool) run(ctx context.Context) {
	defer close(p.done)
	logger := klog.FromContext(ctx)
	for {
		var idle <-chan time.Time
		if p.fill(ctx, logger) {
			idle = time.After(poolIdle)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			p.pause(ctx)
		case <-idle:
			p.shrink()
		}
	}
}

// pause waits for poolPause, or until less than half of the places are left.
func (p *pool) pause(ctx context.Context) {
	over := time.NewTimer(poolPause)
	defer over.Stop()
	for {
		p.mu.Lock()
		low := len(p.ready)*2 < p.size
		p.mu.Unlock()
		if low {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-over.C:
			return
		case <-p.wake:
		}
	}
}

// fill creates places until there are enough; it returns true if the pool is larger than its
// minimum.
func (p *pool) fill(ctx context.Context, logger klog.Logger) bool {
	for ctx.Err() == nil {
		p.mu.Lock()
		missing, grown := len(p.ready) < p.size, p.size > p.min
		p.mu.Unlock()
		if !missing {
			return grown
		}
		made, err := p.make(ctx)
		if err != nil {
			// Not retried until the next request: the pod then gets the error itself.
			logger.V(2).Info("Cannot prepare a network namespace", "err", err)
			return grown
		}
		p.mu.Lock()
		p.ready = append(p.ready, made)
		p.mu.Unlock()
	}
	return false
}

func (p *pool) shrink() {
	p.mu.Lock()
	p.size = p.min
	var spare []*place
	if len(p.ready) > p.size {
		spare = append(spare, p.ready[p.size:]...)
		p.ready = p.ready[:p.size]
	}
	p.mu.Unlock()
	for _, s := range spare {
		p.drop(s)
	}
}

// close stops filling and removes the places.
func (p *pool) close() {
	p.stop()
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.ready {
		p.drop(s)
	}
	p.ready, p.size, p.max = nil, 0, 0
}
