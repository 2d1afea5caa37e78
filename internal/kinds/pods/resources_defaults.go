package pods

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/core/resources"
)

// defaultPodResources completes the pod-level resources from those of its containers (L1.22). It
// runs after mutating admission, which may still change the containers.
func defaultPodResources(s *corev1.PodSpec) {
	r := s.Resources
	if r == nil || len(r.Requests) == 0 && len(r.Limits) == 0 {
		return
	}
	pod := &corev1.Pod{Spec: *s}
	pod.Spec.Resources, pod.Spec.Overhead = nil, nil
	requests, limits := resources.SpecRequests(pod), resources.SpecLimits(pod)

	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if _, ok := r.Requests[name]; ok || !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			continue
		}
		if _, ok := r.Limits[name]; !ok {
			setQuantity(&r.Limits, name, limits[name])
		}
	}
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if _, ok := r.Requests[name]; !ok {
			if q, ok := requests[name]; ok {
				setQuantity(&r.Requests, name, q)
			} else if q, ok := r.Limits[name]; ok {
				setQuantity(&r.Requests, name, q)
			}
		}
		if _, ok := r.Limits[name]; !ok && everyContainerLimits(s, name) {
			q := limits[name]
			if req, ok := r.Requests[name]; ok && req.Cmp(q) > 0 {
				q = req
			}
			setQuantity(&r.Limits, name, q)
		}
	}
}

func everyContainerLimits(s *corev1.PodSpec, name corev1.ResourceName) bool {
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			if _, ok := list[i].Resources.Limits[name]; !ok {
				return false
			}
		}
	}
	return len(s.Containers) > 0
}

func setQuantity(l *corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if *l == nil {
		*l = corev1.ResourceList{}
	}
	(*l)[name] = q.DeepCopy()
}
