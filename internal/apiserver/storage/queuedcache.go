package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"

	"carob/internal/base/gctuning"
	"carob/internal/base/partiallist"
)

// queuedCache is a cached store whose watches have room for a burst. The cache ends a watch when
// its client is some ten events behind and does not catch up within a moment: fewer than one burst
// of pods on a busy machine. Events wait as pointers to objects that the cache holds anyway.
type queuedCache struct {
	*cacher.CacheDelegator
	inProcess func(context.Context) bool // reports whether a part of this process makes the request
	clock     *cacheClock                // of the cache; nil on an external store
	shared    *sharedWatch               // for clients
	cut       *cut

	unreadable *unreadable // what the cache lacks
}

// newQueuedCache returns the store of a cache whose changes are also in engine. It cuts the cache's
// history when the process becomes idle, until its shared watch is closed.
func newQueuedCache(c *cacher.Cacher, d *cacher.CacheDelegator, engine storage.Interface, kind schema.GroupResource,
	root string, inProcess func(context.Context) bool, clock *cacheClock,
	newObject func() runtime.Object) queuedCache {
	p := queuedCache{CacheDelegator: d, inProcess: inProcess, clock: clock, cut: &cut{engine: engine}}
	p.shared = newSharedWatch(d, root, 0, clock, newObject, p.single)
	p.shared.queued = true // the cache waits for no client
	p.shared.kind = kind
	context.AfterFunc(p.shared.ctx, gctuning.OnSettle(p.shared.forget))
	var ok bool
	if p.cut.history, ok = historyOf(c); ok {
		context.AfterFunc(p.shared.ctx, gctuning.OnSettle(p.cut.cut))
	}
	return p
}

// GetList implements storage.Interface.
func (p queuedCache) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	lost := func() bool { return p.unreadable.in(key, opts) && !partiallist.Accepted(ctx) }
	if lost() {
		return p.cut.engine.GetList(ctx, key, opts, list)
	}
	if err := p.CacheDelegator.GetList(ctx, key, opts, list); err != nil || !lost() {
		return err
	}
	if _, err := dropItems(list); err != nil { // the list has waited for a cache that lacks objects
		return err
	}
	return p.cut.engine.GetList(ctx, key, opts, list)
}

// Watch implements storage.Interface.
func (p queuedCache) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	lost := func() bool { return p.unreadable.in(key, opts) && !partiallist.Accepted(ctx) }
	if p.cut.has(opts) || lost() {
		return watchEngine(ctx, p.cut.engine, p.inProcess(ctx), key, opts)
	}
	if p.inProcess(ctx) && !requestsBare(ctx) {
		return p.single(ctx, key, opts)
	}
	w, err := p.shared.Watch(ctx, key, opts)
	if err == nil && lost() {
		w.Stop() // it has waited for a cache that lacks objects
		return watchEngine(ctx, p.cut.engine, p.inProcess(ctx), key, opts)
	}
	return w, err
}

// single starts a watch of the cache.
func (p queuedCache) single(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if err := checkVersion(opts.ResourceVersion); err != nil {
		return nil, err
	}
	w, err := p.CacheDelegator.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	if requestsBare(ctx) {
		return newBareQueue(w, watchRoom), nil
	}
	var left func()
	switch {
	case p.clock == nil || !opts.Predicate.AllowWatchBookmarks:
	case p.inProcess(ctx):
		p.clock.inProcess()
	default:
		left = p.clock.client()
	}
	return newQueue(w, watchRoom, 0, left), nil
}
