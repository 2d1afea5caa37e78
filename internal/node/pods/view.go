package pods

import (
	"sync"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife"
)

// View is the current state of a pod.
type View struct {
	Pod    *corev1.Pod      // newest version seen; read only
	Status corev1.PodStatus // as computed here, possibly not written yet; read only
	Life   podlife.Life     // empty before the first Step
	Waits  []podlife.Wait

	runs *corev1.Pod // with the resources that it may use; nil before the first Step
}

// published is the newest decision about a pod, for all readers. Its owner writes it; it
// outlives the owner of a pod at rest.
type published struct {
	mu      sync.Mutex
	seen    View
	changed chan struct{} // closed at the next decision; nil while no reader waits
}

func (p *published) show(v View) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = v
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// view is the newest decision; its Pod is not set.
func (p *published) view() View {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// next returns a channel that is closed at the next decision.
func (p *published) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}
