package native

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// leftovers are half-made sandboxes and containers that could not be taken back
// at once, as a rule for want of descriptors. Nobody else knows them, so they are
// tried again until they are gone, by one goroutine that is there only while there
// are any. What is left at close is found by the next start.
type leftovers struct {
	mu     sync.Mutex
	list   []leftover
	active bool
	closed bool

	stop chan struct{}
	done sync.WaitGroup
}

type leftover struct {
	kind, id string
	remove   func(context.Context) error
}

const firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second

func newLeftovers() *leftovers { return &leftovers{stop: make(chan struct{})} }

// take takes over what remove failed to remove, with err.
func (l *leftovers) take(kind, id string, err error, remove func(context.Context) error) {
	klog.Background().Error(err, "Half-made "+kind+" stays for now", kind, id)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.list = append(l.list, leftover{kind, id, remove})
	if !l.active {
		l.active = true
		l.done.Go(l.retry)
	}
}

func (l *leftovers) retry() {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		select {
		case <-l.stop:
			return
		case <-time.After(wait):
		}
		l.mu.Lock()
		list := l.list
		l.list = nil
		l.mu.Unlock()
		var still []leftover
		for _, x := range list {
			if err := x.remove(context.Background()); err != nil {
				klog.Background().V(2).Info("Half-made "+x.kind+" still stays", x.kind, x.id, "reason", err)
				still = append(still, x)
				continue
			}
			klog.Background().Info("Half-made "+x.kind+" is removed", x.kind, x.id)
		}
		l.mu.Lock()
		l.list = append(still, l.list...)
		l.active = len(l.list) > 0
		active := l.active
		l.mu.Unlock()
		if !active {
			return
		}
	}
}

func (l *leftovers) close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.stop)
	}
	l.mu.Unlock()
	l.done.Wait()
}
