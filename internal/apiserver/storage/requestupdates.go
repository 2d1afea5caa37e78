package storage

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// requestUpdates are the objects as the updates of one request have left them, by key.
type requestUpdates struct {
	mu   sync.Mutex
	left map[string]runtime.Object
}

type requestUpdatesKey struct{}

// WithUpdates returns the context of a request that updates objects and then deletes them. A deletion
// begins with what the update has left. The watch cache has not heard of that yet, as a rule: a
// deletion that begins with an older version costs a transaction that fails, with its fsync.
func WithUpdates(ctx context.Context) context.Context {
	return context.WithValue(ctx, requestUpdatesKey{}, &requestUpdates{left: map[string]runtime.Object{}})
}

// wrote notes what an update has left.
func wrote(ctx context.Context, key string, o runtime.Object) {
	if s, ok := ctx.Value(requestUpdatesKey{}).(*requestUpdates); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.left[key] = o.DeepCopyObject()
	}
}

// left returns what the update of this request has left of an object; nil if there was none.
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
