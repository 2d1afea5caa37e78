package storage

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
)

// lazyCache is a store whose watch cache is created by the first watch of a client, or after many
// reads: a cache is three goroutines, a watch on the engine, and a check each second, and most
// kinds are watched only by parts of this process. Their few watches use the engine. Until the
// cache is filled, the engine also answers everything else, which is as correct; it costs a few
// times as much, which matters where each write reads other kinds.
type lazyCache struct {
	storage.Interface        // the engine's
	root              string // the key of all objects
	make              func() (*cacher.Cacher, *cacher.CacheDelegator, error)
	inProcess         func(context.Context) bool // reports whether a part of this process makes the request
	clock             *cacheClock                // the cache's clock; nil on an external store
	newObject         func() runtime.Object
	kind              schema.GroupResource
	unreadable        *unreadable // what the cache lacks

	cached atomic.Pointer[queuedCache] // set when the cache can answer
	since  atomic.Uint64               // the version since which it has all changes
	reads  atomic.Int64                // reads that a cache would have answered

	mu        sync.Mutex
	cache     *cacher.Cacher
	delegator *cacher.CacheDelegator
	direct    map[watch.Interface]struct{} // watches that the engine serves
	parts     *sharedWatch                 // of the engine, for parts of this process that take objects as they are
	stopped   bool
}

// oftenRead is how many reads that any cache could answer create one.
const oftenRead = 100

func (l *lazyCache) current() storage.Interface {
	if p := l.cached.Load(); p != nil {
		return *p
	}
	return l.Interface
}

// read returns the cache for a read of a version or a later one, if it is recent enough.
func (l *lazyCache) read(version string) storage.Interface {
	s := l.current()
	if version == "0" && s == l.Interface && l.reads.Add(1) == oftenRead {
		// It ends with the cache; without one, the engine continues to answer.
		go func() { _, _ = l.begin(context.Background()) }()
	}
	return s
}

// begin returns the cache if it is filled.
func (l *lazyCache) begin(ctx context.Context) (queuedCache, error) {
	cache, delegator, err := l.started()
	if err != nil {
		return queuedCache{}, err
	}
	if err := cache.Wait(ctx); err != nil {
		return queuedCache{}, err
	}
	since, err := l.GetCurrentResourceVersion(ctx)
	if err != nil {
		return queuedCache{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.cached.Load(); p != nil { // meanwhile
		return *p, nil
	}
	p := newQueuedCache(cache, delegator, l.Interface, l.kind, l.root, l.inProcess, l.clock, l.newObject)
	p.unreadable = l.unreadable
	if l.stopped {
		p.shared.close()
	}
	l.since.Store(since)
	l.cached.Store(&p)
	return p, nil
}

// started returns the cache, created by the first call.
func (l *lazyCache) started() (*cacher.Cacher, *cacher.CacheDelegator, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return nil, nil, storage.ErrStorageNotReady
	}
	if l.cache == nil {
		cache, delegator, err := l.make()
		if err != nil {
			return nil, nil, err
		}
		l.cache, l.delegator = cache, delegator
	}
	return l.cache, l.delegator, nil
}

// stop ends the cache, and every later watch.
func (l *lazyCache) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for w := range l.direct {
		w.Stop()
	}
	if l.parts != nil {
		l.parts.close()
	}
	if p := l.cached.Load(); p != nil {
		p.shared.close()
	}
	if l.cache != nil {
		l.delegator.Stop()
		stopWithin(stopPatience, l.cache.Stop)
	}
}

// stopPatience is how long the end of a watch cache is waited for. If upstream's Cacher is stopped while a hundred
// changes are not delivered yet, it never ends: its reflector waits for a reader that has gone (cacher.go,
// processEvent). Then one goroutine of an unused cache stays, and the server continues to stop.
const stopPatience = 5 * time.Second

// stopWithin calls stop and waits until it returns, at most patience.
func stopWithin(patience time.Duration, stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		stop()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// Watch implements storage.Interface.
func (l *lazyCache) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if p := l.cached.Load(); p != nil {
		return l.watch(ctx, *p, key, opts)
	}
	if w, err := l.directly(ctx, key, opts); w != nil || err != nil {
		return w, err
	}
	p, err := l.begin(ctx)
	if err != nil {
		return nil, err
	}
	return l.watch(ctx, p, key, opts)
}

// directly makes the engine serve the watch of a part of this process. It returns nil if a cache is
// needed: for a part of the objects, if there is one, and for a client, which may stop reading: the
// engine's queue is unlimited.
func (l *lazyCache) directly(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if strings.Trim(key, "/") != l.root || !opts.Predicate.Empty() || !l.inProcess(ctx) {
		return nil, nil
	}
	if requestsBare(ctx) {
		if parts := l.together(); parts != nil {
			return parts.Watch(ctx, key, opts)
		}
		return nil, nil
	}
	return l.alone(ctx, key, opts)
}

// together returns a watch that shares the engine's watch with other parts of this process; nil when there is a
// cache.
func (l *lazyCache) together() *sharedWatch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped || l.cache != nil {
		return nil
	}
	if l.parts == nil {
		l.parts = newSharedWatch(l.Interface, l.root, 1, nil, l.newObject,
			func(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
				w, err := l.alone(ctx, key, opts)
				if w == nil && err == nil { // there is a cache now
					return l.Watch(ctx, key, opts)
				}
				return w, err
			})
		l.parts.kind = l.kind
		l.parts.on(apart)
	}
	return l.parts
}

// alone makes the engine serve a watch; it returns nil when there is a cache.
func (l *lazyCache) alone(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped || l.cache != nil {
		return nil, nil
	}
	w, err := watchEngine(ctx, l.Interface, true, key, opts)
	if err != nil {
		return nil, err
	}
	l.direct[w] = struct{}{}
	context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.direct, w)
	})
	return w, nil
}

// watch makes the engine serve versions before the cache: a client may watch from the version of a
// write that no cache received.
func (l *lazyCache) watch(ctx context.Context, cached queuedCache, key string,
	opts storage.ListOptions) (watch.Interface, error) {
	if v, err := strconv.ParseUint(opts.ResourceVersion, 10, 64); err == nil && v > 0 && v < l.since.Load() {
		return watchEngine(ctx, l.Interface, l.inProcess(ctx), key, opts)
	}
	return cached.Watch(ctx, key, opts)
}

// GetList implements storage.Interface.
func (l *lazyCache) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	return l.read(opts.ResourceVersion).GetList(ctx, key, opts, list)
}

// Get implements storage.Interface.
func (l *lazyCache) Get(ctx context.Context, key string, opts storage.GetOptions, obj runtime.Object) error {
	if err := checkVersion(opts.ResourceVersion); err != nil {
		return err
	}
	return l.read(opts.ResourceVersion).Get(ctx, key, opts, obj)
}

// Delete implements storage.Interface.
func (l *lazyCache) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc,
	cached runtime.Object, opts storage.DeleteOptions) error {
	return l.current().Delete(ctx, key, out, preconditions, validate, cached, opts)
}

// GuaranteedUpdate implements storage.Interface.
func (l *lazyCache) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions,
	update storage.UpdateFunc, cached runtime.Object) error {
	return l.current().GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, cached)
}

// ReadinessCheck implements storage.Interface: an unused cache is ready.
func (l *lazyCache) ReadinessCheck() error { return l.current().ReadinessCheck() }

// RequestWatchProgress implements storage.Interface.
func (l *lazyCache) RequestWatchProgress(ctx context.Context) error {
	return l.current().RequestWatchProgress(ctx)
}

// CompactRevision implements storage.Interface.
func (l *lazyCache) CompactRevision() int64 { return l.current().CompactRevision() }
