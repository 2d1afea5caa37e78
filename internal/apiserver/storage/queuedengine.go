package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// queuedEngine is the engine's store for kinds that clients watch without a cache.
type queuedEngine struct {
	storage.Interface
	inProcess func(context.Context) bool // reports whether a part of this process makes the request
	shared    *sharedWatch               // for clients
}

func newQueuedEngine(engine storage.Interface, kind schema.GroupResource, root string,
	inProcess func(context.Context) bool, newObject func() runtime.Object) queuedEngine {
	q := queuedEngine{engine, inProcess,
		newSharedWatch(engine, root, 1, nil, newObject,
			func(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
				return watchEngine(ctx, engine, inProcess(ctx), key, opts)
			})}
	q.shared.kind = kind
	return q
}

// Watch implements storage.Interface.
func (b queuedEngine) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if b.inProcess(ctx) && !requestsBare(ctx) {
		return watchEngine(ctx, b.Interface, true, key, opts)
	}
	return b.shared.Watch(ctx, key, opts)
}
