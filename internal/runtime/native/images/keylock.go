package images

import (
	"context"
	"sync"
)

// keyLocks is one lock for each key in use; waiting ends with the context. The
// zero value is ready.
type keyLocks struct {
	mu   sync.Mutex
	held map[string]*keyLock
}

type keyLock struct {
	token chan struct{} // holds one element while the lock is free
	users int
}

// Lock implements containerd's KeyedLocker.
func (k *keyLocks) Lock(ctx context.Context, key string) error {
	k.mu.Lock()
	if k.held == nil {
		k.held = map[string]*keyLock{}
	}
	l := k.held[key]
	if l == nil {
		l = &keyLock{token: make(chan struct{}, 1)}
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

// Unlock implements containerd's KeyedLocker; the caller holds the lock.
func (k *keyLocks) Unlock(key string) {
	k.mu.Lock()
	l := k.held[key]
	k.mu.Unlock()
	l.token <- struct{}{}
	k.leave(key, l)
}

func (k *keyLocks) leave(key string, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.held, key)
	}
}

func (k *keyLocks) acquire(ctx context.Context, key string) (unlock func(), _ error) {
	if err := k.Lock(ctx, key); err != nil {
		return nil, err
	}
	return func() { k.Unlock(key) }, nil
}
