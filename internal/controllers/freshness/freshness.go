// Package freshness prevents a controller from planning on watch state that is older than its own
// writes. A controller reports the API server's response to each write to a Tracker, and calls
// Fresh before it plans; the Tracker queues the key when its watches have caught up. It has no
// counters and no timeout: a key waits for facts about the watches, which stay true once they are
// true, with events in any order, duplicate events, and also when events were lost and a new list
// came instead:
//
//   - a write that led to a resource version is seen when the watch of that kind has
//     reached this version (source.Watch.Version). Versions grow over all objects, so
//     it does not matter what became of the object since.
//   - a deletion is seen when the watch holds no object of that UID any more, or holds
//     it with a deletionTimestamp, which no object loses again.
//
// The wait of a key ends with the next event, bookmark or list of the watch. One of them always
// follows, because the server has stored a version that the watch has not delivered yet. An owner
// that is created again under its name also waits for the writes of the earlier one, which is short
// and harmless.
package freshness

import (
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"carob/internal/controllers/source"
)

// Tracker records the writes that the watches of one controller have not shown yet. Its methods may
// be called from many goroutines.
type Tracker struct {
	wake func(key string)

	mu    sync.Mutex
	kinds map[*source.Watch]*unseen
}

// unseen holds the writes to one kind that its watch has not shown.
type unseen struct {
	versions  map[string]uint64    // by key, the newest
	least     uint64               // lower bound of versions; 0 when there are none
	deleted   map[types.UID]string // keys
	deletions map[string]int       // how many of deleted are a key's
}

// New returns the tracker of a controller that plans with these watches, before they run. wake is
// called with a key after the watches have shown its writes, on the goroutine of a watch: it must
// not block.
func New(wake func(key string), watches ...*source.Watch) (*Tracker, error) {
	t := &Tracker{wake: wake, kinds: map[*source.Watch]*unseen{}}
	for _, w := range watches {
		t.kinds[w] = &unseen{versions: map[string]uint64{}, deleted: map[types.UID]string{},
			deletions: map[string]int{}}
		if err := w.OnProgress(func(version uint64) { t.reached(w, version) }); err != nil {
			return nil, fmt.Errorf("freshness: %w", err)
		}
		err := w.OnChange(func(before, after metav1.Object) {
			if after == nil || after.GetDeletionTimestamp() != nil {
				t.gone(w, before, after)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("freshness: %w", err)
		}
	}
	return t, nil
}

// Wrote records that a key's plan created or changed an object of a watch's kind: answer is the API
// server's response.
func (t *Tracker) Wrote(key string, w *source.Watch, answer metav1.Object) {
	version, err := source.ParseVersion(answer.GetResourceVersion())
	if err != nil || version == 0 {
		return // of an API without versions
	}
	if t.wrote(key, w, version) {
		return
	}
	// The watch was faster than the response. Its event queued the key, unless the object was
	// created and removed between two lists.
	if obj, there, _ := w.Objects().GetByKey(name(answer)); !there || uid(obj) != answer.GetUID() {
		t.wake(key)
	}
}

// wrote reports whether the version has not been observed yet.
func (t *Tracker) wrote(key string, w *source.Watch, version uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.kinds[w]
	if w.Version() >= version {
		return false
	}
	u.versions[key] = max(u.versions[key], version)
	if u.least == 0 || version < u.least {
		u.least = version
	}
	return true
}

// Deleted records that the API server accepted a key's deletion of an object, or responded that it
// does not exist: o is the object from the watch.
func (t *Tracker) Deleted(key string, w *source.Watch, o metav1.Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.kinds[w]
	if _, known := u.deleted[o.GetUID()]; known {
		return
	}
	// Later events of the watch are passed to gone, which waits for the lock.
	if obj, there, _ := w.Objects().GetByKey(name(o)); there && uid(obj) == o.GetUID() && !terminating(obj) {
		u.deleted[o.GetUID()] = key
		u.deletions[key]++
	}
}

// Fresh reports whether the watches show all writes for a key. If not, wake is called with the key when they
// do.
func (t *Tracker) Fresh(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fresh(key)
}

func (t *Tracker) fresh(key string) bool {
	for w, u := range t.kinds {
		if u.versions[key] > w.Version() || u.deletions[key] > 0 {
			return false
		}
	}
	return true
}

// reached is called with the version up to which a watch is current.
func (t *Tracker) reached(w *source.Watch, version uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.kinds[w]
	if u.least == 0 || version < u.least {
		return
	}
	var seen []string
	for key, v := range u.versions {
		if v <= version {
			delete(u.versions, key)
			seen = append(seen, key)
		}
	}
	u.least = u.lowest()
	t.wakeFresh(seen)
}

// gone is called with an object that was removed or is being deleted.
func (t *Tracker) gone(w *source.Watch, before, after metav1.Object) {
	o := after
	if o == nil {
		o = before
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.kinds[w]
	key, ok := u.deleted[o.GetUID()]
	if !ok {
		return
	}
	delete(u.deleted, o.GetUID())
	if u.deletions[key]--; u.deletions[key] == 0 {
		delete(u.deletions, key)
		t.wakeFresh([]string{key})
	}
}

func (t *Tracker) wakeFresh(keys []string) {
	for _, key := range keys {
		if t.fresh(key) {
			t.wake(key)
		}
	}
}

func (u *unseen) lowest() uint64 {
	least := uint64(0)
	for _, v := range u.versions {
		if least == 0 || v < least {
			least = v
		}
	}
	return least
}

func name(o metav1.Object) string {
	return cache.NewObjectName(o.GetNamespace(), o.GetName()).String()
}

func uid(obj any) types.UID {
	if o, ok := obj.(metav1.Object); ok {
		return o.GetUID()
	}
	return ""
}

func terminating(obj any) bool {
	o, ok := obj.(metav1.Object)
	return ok && o.GetDeletionTimestamp() != nil
}
