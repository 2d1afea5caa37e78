package vpa

import (
	"context"
	"sync"
	"time"

	"carob/internal/base/slowkeys"
)

// lanes write for several namespaces at once: in each, one write after another. A namespace whose writes wait for a
// webhook that does not answer holds up no other one, and gets no more writes until these have ended.
type lanes struct {
	slots chan struct{} // limits the namespaces that are written to at once
	all   sync.WaitGroup

	mu   sync.Mutex
	busy map[string]bool // by namespace
}

func newLanes() *lanes {
	return &lanes{slots: make(chan struct{}, slowkeys.InAll), busy: map[string]bool{}}
}

// patience is how long a pass waits for writes.
const patience = 10 * time.Second

// run begins the writes of the namespaces, without those that are busy, and waits for their end, or for a while. The
// writes must end with ctx. all is false if a namespace was busy: the next pass writes for it.
func (l *lanes) run(ctx context.Context, writes map[string][]func()) (all bool) {
	var begun sync.WaitGroup
	all = true
	for namespace, list := range writes { // any order: they run at once
		if !l.begin(namespace) {
			all = false
			continue
		}
		begun.Add(1)
		l.all.Go(func() {
			defer begun.Done()
			defer l.end(namespace)
			select {
			case l.slots <- struct{}{}:
				defer func() { <-l.slots }()
			case <-ctx.Done():
				return
			}
			for _, write := range list {
				write()
			}
		})
	}
	ended := make(chan struct{})
	l.all.Go(func() { begun.Wait(); close(ended) })
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	return all
}

func (l *lanes) begin(namespace string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy[namespace] {
		return false
	}
	l.busy[namespace] = true
	return true
}

func (l *lanes) end(namespace string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.busy, namespace)
}
