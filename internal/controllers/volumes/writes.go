package volumes

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/controllers/source"
	"carob/internal/core/volume"
)

// writes are the writes of all workers, by the key of the object: those in flight, and those that the watches do not
// show yet.
type writes struct {
	mu      sync.Mutex
	running map[string]chan struct{} // closed at the end
	answers map[string]metav1.Object
}

// begin begins a write. If another worker writes the object, it waits for that and returns false: the decision is made
// again then, so that workers do not choose the same volume. What they decide on older versions, the API refuses.
func (w *writes) begin(ctx context.Context, key string) bool {
	w.mu.Lock()
	other, ok := w.running[key]
	if !ok {
		w.running[key] = make(chan struct{})
	}
	w.mu.Unlock()
	if !ok {
		return true
	}
	select {
	case <-other:
	case <-ctx.Done():
	}
	return false
}

// end ends a write; answer is the object as it is stored now, nil if the write failed.
func (w *writes) end(key string, answer metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if answer != nil {
		w.answers[key] = answer
	}
	close(w.running[key])
	delete(w.running, key)
}

// volumes are the names of the volumes that were written and may not be shown yet.
func (w *writes) volumes() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.answers { // in any order: each is one volume's
		if v, ok := o.(*corev1.PersistentVolume); ok {
			names = append(names, v.Name)
		}
	}
	return names
}

// sorted are the volumes that the watch shows, in the order of their names. They are listed once for all decisions
// until the next change.
type sorted struct {
	mu      sync.Mutex
	changes int
	list    []*corev1.PersistentVolume // nil: unknown
}

// change is called after the watch has stored a change, and before a claim is queued for it.
func (s *sorted) change() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	s.list = nil
}

// get returns the volumes, for reading only.
func (s *sorted) get(from *source.Watch) []*corev1.PersistentVolume {
	s.mu.Lock()
	list, changes := s.list, s.changes
	s.mu.Unlock()
	if list != nil {
		return list
	}
	for _, o := range from.Objects().List() {
		if v, ok := o.(*corev1.PersistentVolume); ok {
			list = append(list, v)
		}
	}
	volume.SortVolumes(list)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes == changes {
		s.list = list
	}
	return list
}

// newest returns the written version while the watch shows an older one.
func newest[T interface {
	metav1.Object
	comparable
}](w *writes, from *source.Watch, key, name string) T {
	var none T
	w.mu.Lock()
	defer w.mu.Unlock()
	o := source.Get[T](from, name)
	own, ok := w.answers[key].(T)
	if !ok {
		return o
	}
	wrote, err := source.ParseVersion(own.GetResourceVersion())
	if err != nil || wrote <= from.Version() {
		delete(w.answers, key)
		return source.Get[T](from, name) // it may have been read before the watch showed the version
	}
	if o != none {
		if seen, err := source.ParseVersion(o.GetResourceVersion()); err == nil && seen >= wrote {
			return o
		}
	}
	return own
}
