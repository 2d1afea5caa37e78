package state

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Retries are operations that failed, usually for lack of descriptors, and that no other part would
// repeat: removing unfinished sandboxes and containers, writing the record of a running one. One
// goroutine repeats them until all succeed; it exists only while there are any. The next start
// finds what is left at Close.
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

// NewRetries returns one without operations.
func NewRetries() *Retries { return &Retries{stop: make(chan struct{})} }

// Add takes over the operation do, which failed with err.
func (l *Retries) Add(what, id string, err error, do func(context.Context) error) {
	klog.Background().Error(err, "Failed; trying again later: "+what, "id", id)
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

// Pending reports whether operations are waiting.
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
				klog.Background().V(2).Info("Failed; trying again later: "+x.what, "id", x.id, "reason", err)
				still = append(still, x)
				continue
			}
			klog.Background().Info("Succeeded after other tries: "+x.what, "id", x.id)
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

// Close ends all retries and waits for the one in progress.
func (l *Retries) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.stop)
	}
	l.mu.Unlock()
	l.done.Wait()
}
