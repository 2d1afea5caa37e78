package volumes

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/controllers/source"
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
