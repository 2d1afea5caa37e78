package state

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Retries are what could not be done at once, usually for lack of descriptors, and what nobody
// else would do: removing half-made sandboxes and containers, writing the record of one that
// runs. One goroutine tries again until all is done, and is there only while there is any. What
// is left at close is found by the next start.
type Retries struct {
	mu     sync.Mutex
	list   []retry
	active bool
	closed bool

	stop chan struct{}
	done sync.WaitGroup
}

type retry struct {
	what, id string
	do       func(context.Context) error
}

const firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second

// NewRetries has nothing to try yet.
func NewRetries() *Retries { return &Retries{stop: make(chan struct{})} }

// Add takes over what do failed to do, with err.
func (l *Retries) Add(what, id string, err error, do func(context.Context) error) {
	klog.Background().Error(err, "To be tried again: "+what, "id", id)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.list = append(l.list, retry{what, id, do})
	if !l.active {
		l.active = true
		l.done.Go(l.retry)
	}
}

// Pending says that something waits to be done.
func (l *Retries) Pending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active
}

func (l *Retries) retry() {
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
		var still []retry
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

// Close ends all tries and waits for the one that is on its way.
func (l *Retries) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.stop)
	}
	l.mu.Unlock()
	l.done.Wait()
}
