package fakeapi

import (
	"maps"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Watch is the cache of a controller for the objects of one type. Each watch has its own delay: two
// watches may show different times.
type Watch struct {
	// OnEvent is called for each event of the watch, repeated ones included.
	OnEvent func()
	api     *API
	of      func(Object) bool
	objects map[types.UID]Entry
	at      int // entries of the history that were delivered
	version int
}

// NewWatch returns a watch of the objects of a type, after its first list.
func NewWatch[T Object](a *API) *Watch {
	w := &Watch{api: a, OnEvent: func() {}, of: func(o Object) bool {
		_, ok := o.(T)
		return ok
	}}
	w.List()
	return w
}

// Caches are the watches of a process: its controllers share one for each type, so that no
// controller acts on newer state than another one has.
type Caches struct {
	api     *API
	byType  map[reflect.Type]*Watch
	watches []*Watch
}

// NewCaches returns the watches of a new process, none yet.
func NewCaches(a *API) *Caches { return &Caches{api: a, byType: map[reflect.Type]*Watch{}} }

// Watches returns all watches, in the order in which they began.
func (c *Caches) Watches() []*Watch { return c.watches }

// CatchUp delivers what all watches have not delivered yet.
func (c *Caches) CatchUp() {
	for _, w := range c.watches {
		w.CatchUp()
	}
}

// Shared returns the watch of a type, and calls changed for each later event.
func Shared[T Object](c *Caches, changed func()) *Watch {
	t := reflect.TypeFor[T]()
	w := c.byType[t]
	if w == nil {
		w = NewWatch[T](c.api)
		c.byType[t], c.watches = w, append(c.watches, w)
	}
	earlier := w.OnEvent
	w.OnEvent = func() {
		earlier()
		changed()
	}
	return w
}

// Seen returns the objects that a watch has, oldest first.
func Seen[T Object](w *Watch) []T { return typed[T](w.objects) }

// Owned returns the objects that a watch has and that an owner controls, oldest first.
func Owned[T Object](w *Watch, owner types.UID) []T {
	return slices.DeleteFunc(Seen[T](w), func(o T) bool {
		ref := metav1.GetControllerOfNoCopy(o)
		return ref == nil || ref.UID != owner
	})
}

// Get returns the object that the watch has, nil if it has none.
func (w *Watch) Get(uid types.UID) Object { return w.objects[uid].Object }

// Version returns the version of the newest event that the watch has delivered.
func (w *Watch) Version() int { return w.version }

// List replaces the content of the watch by the stored objects.
func (w *Watch) List() {
	w.objects = maps.Clone(w.api.objects)
	maps.DeleteFunc(w.objects, func(_ types.UID, e Entry) bool { return !w.of(e.Object) })
	w.at, w.version = len(w.api.history), len(w.api.history)
	w.OnEvent()
}

// Deliver delivers some events, an event twice, or loses some and lists.
func (w *Watch) Deliver() {
	if w.api.One(25) {
		w.List()
		return
	}
	for n := 1 + w.api.IntN(4); n > 0 && w.next(); {
		n--
	}
}

// Behind reports whether the store has changes that the watch has not delivered.
func (w *Watch) Behind() bool {
	for _, e := range w.api.history[w.at:] {
		if w.of(e.Object) {
			return true
		}
	}
	return false
}

// CatchUp delivers all events.
func (w *Watch) CatchUp() {
	for w.next() {
	}
}

// next delivers the next event of the type; it returns false if there is none.
func (w *Watch) next() bool {
	for w.at < len(w.api.history) {
		e := w.api.history[w.at]
		w.at++
		if !w.of(e.Object) {
			continue
		}
		w.version = e.Version
		if e.Gone {
			delete(w.objects, e.Object.GetUID())
		} else {
			w.objects[e.Object.GetUID()] = e
		}
		w.OnEvent()
		if w.api.One(10) {
			w.OnEvent()
		}
		return true
	}
	return false
}

// Tracker is the simulator's version of controllers/freshness.Tracker: it records the writes of a
// controller that its watches have not delivered yet.
type Tracker struct {
	versions map[*Watch]int
	deleted  map[types.UID]*Watch
}

// NewTracker returns a tracker without writes.
func NewTracker() *Tracker {
	return &Tracker{versions: map[*Watch]int{}, deleted: map[types.UID]*Watch{}}
}

// Wrote records a write that succeeded.
func (t *Tracker) Wrote(w *Watch, answer Entry) {
	t.versions[w] = max(t.versions[w], answer.Version)
}

// Unclear records the stored version of an object after a write without a response, as children.Keeper.Behind
// does: it may be the version of that write.
func (t *Tracker) Unclear(w *Watch, uid types.UID) {
	if e, ok := w.api.Read(uid); ok {
		t.Wrote(w, e)
	}
}

// Deleted records that the API accepted a deletion, or responded that the object does not exist.
func (t *Tracker) Deleted(w *Watch, uid types.UID) { t.deleted[uid] = w }

// Fresh reports whether the watches have delivered all recorded writes.
func (t *Tracker) Fresh() bool {
	for uid, w := range t.deleted {
		if o := w.Get(uid); o != nil && o.GetDeletionTimestamp() == nil {
			return false
		}
		delete(t.deleted, uid)
	}
	for w, v := range t.versions {
		if w.version < v {
			return false
		}
	}
	return true
}
