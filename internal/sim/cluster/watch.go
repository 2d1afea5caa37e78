package cluster

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"
)

// Watch is what a controller knows of the objects of one type. Each watch is as late as
// it likes: what it shows need not fit what another shows.
type Watch struct {
	// Heard is called for each entry that the watch is told, also for one that comes twice.
	Heard   func()
	api     *API
	of      func(Object) bool
	objects map[types.UID]Entry
	at      int // entries of the history that were told
	version int
}

// NewWatch returns a watch of the objects of a type, after its first list.
func NewWatch[T Object](a *API) *Watch {
	w := &Watch{api: a, Heard: func() {}, of: func(o Object) bool {
		_, ok := o.(T)
		return ok
	}}
	w.List()
	return w
}

// Seen returns the objects that a watch shows, oldest first.
func Seen[T Object](w *Watch) []T { return typed[T](w.objects) }

// Get returns the object that the watch shows, nil if it shows none.
func (w *Watch) Get(uid types.UID) Object { return w.objects[uid].Object }

// List shows what is stored now, whatever was told before.
func (w *Watch) List() {
	w.objects = maps.Clone(w.api.objects)
	maps.DeleteFunc(w.objects, func(_ types.UID, e Entry) bool { return !w.of(e.Object) })
	w.at, w.version = len(w.api.history), len(w.api.history)
	w.Heard()
}

// Tell tells some of what happened, an entry twice, or loses some and lists.
func (w *Watch) Tell() {
	if w.api.One(25) {
		w.List()
		return
	}
	for n := 1 + w.api.IntN(4); n > 0 && w.next(); {
		n--
	}
}

// CatchUp tells all that happened.
func (w *Watch) CatchUp() {
	for w.next() {
	}
}

// next tells the next entry of the type; false: there is none.
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
		w.Heard()
		if w.api.One(10) {
			w.Heard()
		}
		return true
	}
	return false
}

// Tracker is the twin of controllers/freshness.Tracker: it knows which writes of a
// controller its watches have yet to show.
type Tracker struct {
	versions map[*Watch]int
	deleted  map[types.UID]*Watch
}

// NewTracker returns one that waits for nothing.
func NewTracker() *Tracker {
	return &Tracker{versions: map[*Watch]int{}, deleted: map[types.UID]*Watch{}}
}

// Wrote notes a write that was answered.
func (t *Tracker) Wrote(w *Watch, answer Entry) {
	t.versions[w] = max(t.versions[w], answer.Version)
}

// Deleted notes that the API has taken a deletion, or answered that there is no such object.
func (t *Tracker) Deleted(w *Watch, uid types.UID) { t.deleted[uid] = w }

// Fresh reports whether the watches show all that was written.
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
