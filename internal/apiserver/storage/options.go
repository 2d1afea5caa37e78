package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"carob/internal/kinds/scheme"
)

const (
	keyPrefix         = "/registry"
	compactInterval   = 5 * time.Minute
	deleteCollWorkers = 2
)

// Options implements generic.RESTOptionsGetter: how each kind is stored. Objects are protobuf in
// their group's preferred version, encoded by one codec per group, under upstream's keys, so that
// its tools can read them.
type Options struct {
	engine          *Engine
	set             *scheme.Set
	caching         func(schema.GroupResource) Caching
	transformers    Transformers
	compactor       etcd3.Compactor
	stopCompactor   func()
	allUncached     bool
	customResources bool // see ForCustomResources
	inProcess       func(context.Context) bool
	paced           time.Time // start of the caches' common period; zero for an external store

	mu     sync.Mutex
	codecs map[string]codec
	caches []kindCache
	left   map[*lazyCache]func() // storages of custom resources and how to destroy them
}

type kindCache struct {
	kind schema.GroupResource
	*cacher.Cacher
}

type codec struct {
	runtime.Codec
	encode runtime.GroupVersioner
}

var _ generic.RESTOptionsGetter = (*Options)(nil)

// Caching is when a kind gets its watch cache.
type Caching int

// The possible times.
const (
	Eager    Caching = iota // with its store: kinds that the server itself reads all the time
	Lazy                    // by a client's first watch
	Uncached                // never
)

// NewOptions returns the options of kinds stored in e, cached as caching says and encrypted as
// transformers says. own reports whether a request's context belongs to a part of this process.
func NewOptions(e *Engine, set *scheme.Set, caching func(schema.GroupResource) Caching, transformers Transformers,
	inProcess func(context.Context) bool) *Options {
	compactor := etcd3.NewCompactor(e.Client.Client, compactInterval, clock.RealClock{}, nil)
	o := &Options{engine: e, set: set, caching: caching, transformers: transformers, inProcess: inProcess,
		codecs:    map[string]codec{},
		compactor: compactor, stopCompactor: compactor.Stop}
	if e.server != nil {
		o.paced = time.Now()
	}
	return o
}

// Uncached returns the same options without any watch cache. It shares the
// compactor and must not be closed.
func (o *Options) Uncached() *Options {
	return &Options{engine: o.engine, set: o.set, transformers: o.transformers, compactor: o.compactor,
		codecs: map[string]codec{}, allUncached: true}
}

// Close stops compacting.
func (o *Options) Close() { o.stopCompactor() }

// Wait returns when every watch cache created so far is filled. Before that, a cache rejects lists.
// Kinds that cannot be read within limit are returned; an error says that ctx ended.
func (o *Options) Wait(ctx context.Context, limit time.Duration) (unread []schema.GroupResource, err error) {
	o.mu.Lock()
	caches := slices.Clone(o.caches)
	o.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, c := range caches {
		if c.Ready() {
			continue
		}
		if err := c.Wait(bounded); err != nil {
			if bounded.Err() == nil || ctx.Err() != nil {
				return nil, fmt.Errorf("read what is stored of %v: %w", c.kind, err)
			}
			unread = append(unread, c.kind)
		}
	}
	return unread, nil
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o *Options) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	c, err := o.codec(gr.Group)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	sc := storagebackend.NewDefaultConfig(keyPrefix, c.Codec)
	sc.EncodeVersioner = c.encode
	sc.CountMetricPollPeriod = 0
	sc.EventsHistoryWindow = storagebackend.DefaultEventsHistoryWindow
	return generic.RESTOptions{
		StorageConfig: sc.ForResource(gr), Decorator: o.decorate, EnableGarbageCollection: true,
		DeleteCollectionWorkers: deleteCollWorkers,
		ResourcePrefix:          resourcePrefix(gr), CountMetricPollPeriod: 0,
	}, nil
}

// resourcePrefix is the kind's key below /registry. The names of old kinds are historical; backup
// tools know them.
func resourcePrefix(gr schema.GroupResource) string {
	switch gr {
	case schema.GroupResource{Resource: "nodes"}:
		return "minions"
	case schema.GroupResource{Resource: "services"}:
		return "services/specs"
	case schema.GroupResource{Resource: "endpoints"}:
		return "services/endpoints"
	case schema.GroupResource{Resource: "replicationcontrollers"}:
		return "controllers"
	}
	return gr.Resource
}

func (o *Options) codec(group string) (codec, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c, ok := o.codecs[group]; ok {
		return c, nil
	}
	versions := o.set.Scheme.PrioritizedVersionsForGroup(group)
	if len(versions) == 0 {
		return codec{}, fmt.Errorf("no version of API group %q is known", group)
	}
	c, versioner, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType: runtime.ContentTypeProtobuf, StorageSerializer: o.set.Codecs, StorageVersion: versions[0],
		MemoryVersion: scheme.Hub(group)})
	if err != nil {
		return codec{}, fmt.Errorf("make the storage codec of API group %q: %w", group, err)
	}
	o.codecs[group] = codec{bare{c}, versioner}
	return o.codecs[group], nil
}

// clock returns the clock of a new watch cache, and its control unless the store is external.
func (o *Options) clock() (clock.WithTicker, *cacheClock) {
	if o.paced.IsZero() {
		return clock.RealClock{}, nil
	}
	p := &cacheClock{start: o.paced}
	return p, p
}

// decorate creates a kind's store on the shared client. Upstream's factory would open a connection
// and start a prober for each kind.
func (o *Options) decorate(c *storagebackend.ConfigForResource, prefix string,
	keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface,
	factory.DestroyFunc, error) {
	versioner := storage.APIObjectVersioner{}
	plain := etcd3.NewDefaultDecoder(c.Codec, versioner)
	decoder := etcd3.WithCorruptObjErrorHandlingDecoder(plain)
	if o.customResources {
		decoder = batchDecoder{Decoder: decoder, others: plain, versioner: versioner}
	} else {
		decoder = skipping{decoder}
	}
	stored, err := etcd3.New(o.engine.Client, o.compactor, c.Codec, newFunc, newListFunc, c.Prefix, prefix,
		c.GroupResource, etcd3.WithCorruptObjErrorHandlingTransformer(o.transformers(c.GroupResource)),
		c.LeaseManagerConfig, decoder, versioner)
	if err != nil {
		return nil, nil, err
	}
	// An error about an object that cannot be read has its key: users find and delete it.
	readable := etcd3.NewStoreWithUnsafeCorruptObjectDeletion(stored, c.GroupResource)
	var raw storage.Interface = counted{readable, o.engine.writes.of(c.GroupResource)}
	if o.customResources {
		raw = &batching{raw, c.Codec, newFunc}
	} else {
		raw = tolerant{raw}
	}
	if o.allUncached {
		return raw, stored.Close, nil
	}
	root := strings.Trim(prefix, "/")
	caching := o.caching(c.GroupResource)
	if caching == Uncached {
		b := newQueuedEngine(raw, c.GroupResource, root, o.inProcess, newFunc)
		b.shared.kind = c.GroupResource
		return o.withZeroCopy(b, newFunc, newListFunc), func() { b.shared.close(); stored.Close() }, nil
	}
	clk, paced := o.clock()
	lost := &unreadable{}
	cached := &lazyCache{Interface: raw, unreadable: lost, root: root, inProcess: o.inProcess, clock: paced,
		newObject: newFunc, kind: c.GroupResource, direct: map[watch.Interface]struct{}{},
		make: func() (*cacher.Cacher, *cacher.CacheDelegator, error) {
			watchCache, err := cacher.NewCacherFromConfig(cacher.Config{
				Storage: cacheStream{raw, prefix, lost}, Versioner: versioner, GroupResource: c.GroupResource,
				EventsHistoryWindow: c.EventsHistoryWindow, ResourcePrefix: prefix, KeyFunc: keyFunc, NewFunc: newFunc,
				NewListFunc:  newListFunc,
				GetAttrsFunc: attrs, IndexerFuncs: triggers, Indexers: indexers, Codec: c.Codec, Clock: clk})
			if err != nil {
				return nil, nil, fmt.Errorf("make the watch cache of %v: %w", c.GroupResource, err)
			}
			return watchCache, cacher.NewCacheDelegator(watchCache, raw), nil
		}}
	destroy := sync.OnceFunc(func() {
		cached.stop()
		stored.Close()
	})
	if o.customResources {
		return o.withZeroCopy(cached, newFunc, newListFunc), o.track(cached, destroy), nil
	}
	if caching == Lazy {
		return o.withZeroCopy(cached, newFunc, newListFunc), destroy, nil
	}
	watchCache, delegator, err := cached.started()
	if err != nil {
		stored.Close()
		return nil, nil, err
	}
	o.mu.Lock()
	o.caches = append(o.caches, kindCache{c.GroupResource, watchCache})
	o.mu.Unlock()
	p := newQueuedCache(watchCache, delegator, raw, c.GroupResource, root, o.inProcess, paced, newFunc)
	p.unreadable = lost
	return o.withZeroCopy(p, newFunc, newListFunc), func() { p.shared.close(); destroy() }, nil
}

func (o *Options) withZeroCopy(s storage.Interface, newObject, newList func() runtime.Object) storage.Interface {
	return zeroCopyStore{s, o.inProcess, newObject, newList}
}

// bare decodes objects without their kind, as a codec does that converts them to types of the server's own. Clients
// get the kind when the object is encoded for them, or once, in the list. An object that said its kind here would
// differ from the same object that was just made from an apply, which then could not be seen to change nothing.
type bare struct{ runtime.Codec }

// Decode implements runtime.Decoder.
func (b bare) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object,
	*schema.GroupVersionKind, error) {
	o, kind, err := b.Codec.Decode(data, defaults, into)
	if err == nil {
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return o, kind, err
}
