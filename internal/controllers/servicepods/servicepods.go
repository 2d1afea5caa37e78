// Package servicepods reports to controllers of Services which pods are behind each Service, and
// changes of them. The controllers of EndpointSlices and Endpoints use it; it must never write.
//
// Contract: N1 in docs/spec/network.md.
package servicepods

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/controllers/source"
	"carob/internal/core/netplan"
)

// Watch tracks the pods of Services for one controller. Its methods may be called from many
// goroutines.
type Watch struct {
	services, pods *source.Watch

	mu   sync.Mutex
	seen map[string]netplan.Seen // by key of the Service
}

// New registers add, which is called with the namespace/name of each Service that is added, changed
// or removed, and of each whose pods change in a way that may affect its endpoints. Both watches
// are indexed by namespace.
func New(services, pods *source.Watch, add func(key string)) (*Watch, error) {
	w := &Watch{services: services, pods: pods, seen: map[string]netplan.Seen{}}
	if err := services.OnChange(func(before, after metav1.Object) {
		o := after
		if o == nil {
			o = before
		}
		add(Key(o))
	}); err != nil {
		return nil, fmt.Errorf("watch services: %w", err)
	}
	if err := pods.OnChange(func(before, after metav1.Object) {
		old, _ := before.(*corev1.Pod)
		pod, _ := after.(*corev1.Pod)
		if old != nil && pod != nil && !netplan.Changed(old, pod) {
			return
		}
		w.Affected(old, pod, add)
	}); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return w, nil
}

// Affected calls add with each Service that selects a pod before or after a change; either may be
// nil.
func (w *Watch) Affected(old, pod *corev1.Pod, add func(key string)) {
	namespace := ""
	for _, p := range []*corev1.Pod{old, pod} {
		if p != nil {
			namespace = p.Namespace
		}
	}
	for _, s := range source.Namespaced[*corev1.Service](w.services, namespace) {
		if old != nil && netplan.Matches(s, old.Labels) || pod != nil && netplan.Matches(s, pod.Labels) {
			add(Key(s))
		}
	}
}

// Of returns the pods that a Service selects, and the time of the change that led here.
func (w *Watch) Of(s *corev1.Service) ([]*corev1.Pod, time.Time) {
	var out []*corev1.Pod
	for _, p := range source.Namespaced[*corev1.Pod](w.pods, s.Namespace) {
		if netplan.Matches(s, p.Labels) {
			out = append(out, p)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	trigger, seen := w.seen[Key(s)].Trigger(s, out)
	w.seen[Key(s)] = seen
	return out, trigger
}

// Forget removes a deleted Service.
func (w *Watch) Forget(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.seen, key)
}

// Key returns the namespace/name of an object.
func Key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }
