// Package keylock provides locks by name: work on one key runs one after the other, work on
// different keys in parallel.
//
// Pod networks lock sandboxes with it, the image store layers. It must never keep memory for a key without a holder and
// waiters.
package keylock

import (
	"context"
	"sync"
)

// Locks is one lock for each key in use; waiting ends with the context. The zero value is ready to
// use.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	token chan struct{} // contains one element while the lock is free
	users int
}

// Lock waits for the key; the error is the cause that ended ctx. Lock and Unlock implement
// containerd's KeyedLocker.
func (k *Locks) Lock(ctx context.Context, key string) error {
	k.mu.Lock()
	if k.held == nil {
		k.held = map[string]*lock{}
	}
	l := k.held[key]
	if l == nil {
		l = &lock{token: make(chan struct{}, 1)}
		l.token <- struct{}{}
		k.held[key] = l
	}
	l.users++
	k.mu.Unlock()
	select {
	case <-l.token:
		return nil
	case <-ctx.Done():
		k.leave(key, l)
		return context.Cause(ctx)
	}
}

// Unlock releases the key, which the caller must hold.
func (k *Locks) Unlock(key string) {
	k.mu.Lock()
	l := k.held[key]
	k.mu.Unlock()
	l.token <- struct{}{}
	k.leave(key, l)
}

func (k *Locks) leave(key string, l *lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.held, key)
	}
}

// Acquire is Lock and returns its own Unlock, to be called once.
func (k *Locks) Acquire(ctx context.Context, key string) (unlock func(), _ error) {
	if err := k.Lock(ctx, key); err != nil {
		return nil, err
	}
	return func() { k.Unlock(key) }, nil
}
