package pods

import (
	"sync"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife"
)

// View is what is known of a pod at this moment.
type View struct {
	Pod    *corev1.Pod      // newest version seen; read only
	Status corev1.PodStatus // as computed here, possibly not written yet; read only
	Life   podlife.Life     // empty before the first Step
	Waits  []podlife.Wait

	runs *corev1.Pod // with the resources that it may use; nil before the first Step
}

// latest is the newest decision about a pod, for all who ask. Its owner writes it; it
// outlives the owner of a pod at rest.
type latest struct {
	mu      sync.Mutex
	seen    View
	changed chan struct{} // closed at the next decision; nil while nobody waits
}

func (l *latest) show(v View) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = v
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// view is the newest decision; its Pod is not set.
func (l *latest) view() View {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

// next returns a channel that is closed at the next decision.
func (l *latest) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}
