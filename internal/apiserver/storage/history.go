package storage

import (
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/cacher/store"
)

// A watch cache keeps the changes of the last minutes in a ring, with the objects
// before and after each and a picture of all objects for each: tens of megabytes after
// a burst, which the ring gives up only when it is full of newer ones. Here it is cut
// to keptHistory when the process has become quiet. Nobody is told that a version is
// too old for it: the engine, which remembers more, serves the watches and pages
// from there.
const keptHistory = 100 // as few as a cache begins with

// history is the ring of a watch cache, seen from inside (docs/decisions/0011-inside-libraries.md).
type history struct {
	mu         *sync.RWMutex
	storage    *store.WatchCacheStorage
	ring       reflect.Value // slice of pointers to events
	capacity   *int
	start, end *int
	removed    *bool // whether an event has gone since the objects were listed
}

// historyOf looks into a cache; false when it is not built as it was.
func historyOf(c *cacher.Cacher) (h history, ok bool) {
	cache := hiddenField(reflect.ValueOf(c).Elem(), "watchCache")
	if cache.Kind() != reflect.Pointer || cache.IsNil() {
		return h, false
	}
	cache = cache.Elem()
	ring := hiddenField(cache, "history")
	if ring.Kind() != reflect.Pointer || ring.IsNil() {
		return h, false
	}
	ring = ring.Elem()
	h.mu = field[sync.RWMutex](cache, "RWMutex")
	if s := field[*store.WatchCacheStorage](cache, "storage"); s != nil {
		h.storage = *s
	}
	h.ring = hiddenField(ring, "cache")
	h.capacity, h.start, h.end = field[int](ring, "capacity"), field[int](ring, "startIndex"),
		field[int](ring, "endIndex")
	h.removed = field[bool](ring, "removedEventSinceRelist")
	ok = h.mu != nil && h.storage != nil && h.capacity != nil && h.start != nil && h.end != nil && h.removed != nil &&
		h.ring.Kind() == reflect.Slice && h.ring.Type().Elem().Kind() == reflect.Pointer
	if ok {
		version, found := h.ring.Type().Elem().Elem().FieldByName("ResourceVersion")
		ok = found && version.Type.Kind() == reflect.Uint64
	}
	return h, ok
}

// cut is what was cut off a cache's history. The engine has it still.
type cut struct {
	engine  storage.Interface
	history history
	since   atomic.Uint64 // the version from which on the cache knows all changes
}

func (c *cut) cut() {
	if since := c.history.cut(); since > 0 {
		c.since.Store(since)
	}
}

// has tells whether a watch begins at a version that only the engine knows.
func (c *cut) has(opts storage.ListOptions) bool {
	if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		return false // it begins with what is there now
	}
	v, err := strconv.ParseUint(opts.ResourceVersion, 10, 64)
	return err == nil && v > 0 && v < c.since.Load()
}

// hiddenField is a field that its package keeps to itself; the zero value when there is none.
func hiddenField(v reflect.Value, name string) reflect.Value {
	f := v.FieldByName(name)
	if !f.IsValid() {
		return reflect.Value{}
	}
	return reflect.NewAt(f.Type(),
		unsafe.Pointer(f.UnsafeAddr())).Elem() //nolint:gosec // the address of a field, with its own type
}

func field[T any](v reflect.Value, name string) *T {
	f := hiddenField(v, name)
	if !f.IsValid() || f.Type() != reflect.TypeFor[T]() {
		return nil
	}
	p, _ := reflect.TypeAssert[*T](f.Addr())
	return p
}

// cut leaves the newest events only, and returns the version from which on the cache
// still knows all changes; 0 when there was nothing to cut.
func (h history) cut() (since uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	capacity := *h.capacity
	n := *h.end - *h.start
	if n <= keptHistory || h.ring.Len() != capacity {
		return 0
	}
	// Existing readers know events by their index, which never goes back.
	start := *h.end - keptHistory
	small := reflect.MakeSlice(h.ring.Type(), keptHistory, keptHistory)
	for i := start; i < *h.end; i++ {
		small.Index(i % keptHistory).Set(h.ring.Index(i % capacity))
	}
	h.ring.Set(small)
	*h.start, *h.capacity, *h.removed = start, keptHistory, true
	oldest := small.Index(start % keptHistory).Elem().FieldByName("ResourceVersion").Uint()
	h.storage.CompactSnapshotsLocked(oldest)
	return oldest - 1
}
