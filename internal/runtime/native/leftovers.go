package native

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// leftovers is what could not be done at once, as a rule for want of descriptors, and
// what nobody else would do: taking back half-made sandboxes and containers, writing the
// record of one that runs. It is tried again until it is done, by one goroutine that is
// there only while there is any. What is left at close is found by the next start.
type leftovers struct {
	mu     sync.Mutex
	list   []leftover
	active bool
	closed bool

	stop chan struct{}
	done sync.WaitGroup
}

type leftover struct {
	what, id string
	do       func(context.Context) error
}

const firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second

func newLeftovers() *leftovers { return &leftovers{stop: make(chan struct{})} }

// take takes over what do failed to do, with err.
func (l *leftovers) take(what, id string, err error, do func(context.Context) error) {
	klog.Background().Error(err, "To be tried again: "+what, "id", id)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.list = append(l.list, leftover{what, id, do})
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
			if err := x.do(context.Background()); err != nil {
				klog.Background().V(2).Info("To be tried again: "+x.what, "id", x.id, "reason", err)
				still = append(still, x)
				continue
			}
			klog.Background().Info("Done at last: "+x.what, "id", x.id)
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
