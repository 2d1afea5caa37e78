package storage

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// requestUpdates are the objects as the updates of one request have written them, by key.
type requestUpdates struct {
	mu   sync.Mutex
	left map[string]runtime.Object
}

type requestUpdatesKey struct{}

// WithUpdates returns the context of a request that updates objects and then deletes them. The deletion begins with
// the version that the update wrote. The watch cache usually does not have it yet: a deletion that begins with an
// older version costs a transaction that fails, with its fsync.
func WithUpdates(ctx context.Context) context.Context {
	return context.WithValue(ctx, requestUpdatesKey{}, &requestUpdates{left: map[string]runtime.Object{}})
}

// wrote records what an update has written.
func wrote(ctx context.Context, key string, o runtime.Object) {
	if s, ok := ctx.Value(requestUpdatesKey{}).(*requestUpdates); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.left[key] = o.DeepCopyObject()
	}
}

// left returns the object as this request has written it; nil if the request has not updated it.
func left(ctx context.Context, key string) runtime.Object {
	s, ok := ctx.Value(requestUpdatesKey{}).(*requestUpdates)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.left[key]
	delete(s.left, key) // the deletion changes it
	return o
}

// GuaranteedUpdate implements storage.Interface.
func (p queuedCache) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	if err := p.CacheDelegator.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update,
		cached); err != nil {
		return err
	}
	wrote(ctx, key, out)
	return nil
}

// Delete implements storage.Interface.
func (p queuedCache) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	if o := left(ctx, key); o != nil {
		return p.cut.engine.Delete(ctx, key, out, preconditions, validate, o, opts)
	}
	return p.CacheDelegator.Delete(ctx, key, out, preconditions, validate, cached, opts)
}
