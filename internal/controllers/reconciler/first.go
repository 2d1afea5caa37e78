package reconciler

import (
	"context"
	"sync"
)

// Watched is a watch that a controller runs or waits for; source.Watch is one.
type Watched interface {
	Run(ctx context.Context)
	Synced() <-chan struct{} // closed after the first list
}

// First is the event that starts a controller: the first object that it has to process. Until then its own watches
// do not run, and only one goroutine waits. Make it with NewFirst; its methods may be called from many goroutines.
type First struct {
	once sync.Once
	seen chan struct{}
}

// NewFirst returns a First without an object.
func NewFirst() *First { return &First{seen: make(chan struct{})} }

// Seen records that there is an object. It does not block; further calls have no effect.
func (f *First) Seen() { f.once.Do(func() { close(f.seen) }) }

// Run waits for Seen, runs the watches own, and calls work when these and others, which other controllers run,
// have synced. It returns when ctx is done, and work and all watches of own have returned. Work is not called if
// ctx ends before.
func (f *First) Run(ctx context.Context, own, others []Watched, work func(ctx context.Context)) {
	if !happened(ctx, f.seen) {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	for _, w := range own {
		running.Go(func() { w.Run(ctx) })
	}
	for _, list := range [][]Watched{own, others} {
		for _, w := range list {
			if !happened(ctx, w.Synced()) {
				return
			}
		}
	}
	work(ctx)
}

// happened waits for an event; it is false if ctx ended first.
func happened(ctx context.Context, event <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-event:
		return true
	}
}
