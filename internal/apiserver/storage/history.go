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

// A watch cache keeps the changes of the last minutes in a ring, with the objects before and after
// each and a snapshot of all objects for each: tens of megabytes after a burst, which the ring
// releases only when newer changes fill it. Here it is cut to keptHistory when the process has
// become idle. No client gets an error that a version is too old: the engine, which keeps more,
// serves the watches and pages from there.
const (
	// keptHistory is how many changes are kept: each has up to two objects of a hundred allocations
	// that were made in a burst, and each of these keeps a page in memory of which it is a part.
	keptHistory = 10
	// ringSize is the initial and smallest size of the ring.
	ringSize = 100
)

// history is the ring of a watch cache, read by reflection
// (docs/decisions/0011-inside-libraries.md).
type history struct {
	mu         *sync.RWMutex
	storage    *store.WatchCacheStorage
	ring       reflect.Value // slice of pointers to events
	capacity   *int
	start, end *int
	removed    *bool // whether an event was removed since the objects were listed
}

// historyOf reads a cache; false if its structure has changed.
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

// cut records what was cut off a cache's history. The engine still has it.
type cut struct {
	engine  storage.Interface
	history history
	since   atomic.Uint64 // the version since which the cache has all changes
}

func (c *cut) cut() {
	if since := c.history.cut(); since > 0 {
		c.since.Store(since)
	}
}

// has reports whether a watch begins at a version that only the engine has.
func (c *cut) has(opts storage.ListOptions) bool {
	if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		return false // it begins with the current objects
	}
	v, err := strconv.ParseUint(opts.ResourceVersion, 10, 64)
	return err == nil && v > 0 && v < c.since.Load()
}

// hiddenField returns an unexported field of a package; the zero value if there is none.
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

// cut keeps only the newest events, and returns the version since which the cache still has all
// changes; 0 if there was nothing to cut.
func (h history) cut() (since uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	capacity := *h.capacity
	n := *h.end - *h.start
	if n <= keptHistory || h.ring.Len() != capacity {
		return 0
	}
	// Existing readers use the index of events, which never decreases.
	start := *h.end - keptHistory
	small := reflect.MakeSlice(h.ring.Type(), ringSize, ringSize)
	for i := start; i < *h.end; i++ {
		small.Index(i % ringSize).Set(h.ring.Index(i % capacity))
	}
	h.ring.Set(small)
	*h.start, *h.capacity, *h.removed = start, ringSize, true
	oldest := small.Index(start % ringSize).Elem().FieldByName("ResourceVersion").Uint()
	h.storage.CompactSnapshotsLocked(oldest)
	return oldest - 1
}
