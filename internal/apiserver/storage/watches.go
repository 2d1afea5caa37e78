package storage

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// watches counts the watches that etcd has accepted. A watch that comes behind a
// write is served from a queue which etcd looks at only ten times a second, so
// nobody should write before the watch caches follow the store.
type watches struct {
	clientv3.Watcher

	mu       sync.Mutex
	accepted int
	grown    chan struct{} // closed and renewed when accepted grows
}

func countWatches(w clientv3.Watcher) *watches {
	return &watches{Watcher: w, grown: make(chan struct{})}
}

// Watch implements clientv3.Watcher. It returns when the server has the watch, or ctx ends.
func (w *watches) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	c := w.Watcher.Watch(ctx, key, opts...)
	w.mu.Lock()
	w.accepted++
	close(w.grown)
	w.grown = make(chan struct{})
	w.mu.Unlock()
	return c
}

// wait returns when n watches have been accepted, or ctx ends.
func (w *watches) wait(ctx context.Context, n int) error {
	for {
		w.mu.Lock()
		accepted, grown := w.accepted, w.grown
		w.mu.Unlock()
		if accepted >= n {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
