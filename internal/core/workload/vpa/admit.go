package vpa

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The annotations of pods that an autoscaler changed (W9.73, W9.58).
const (
	UpdatesAnnotation  = "vpaUpdates"
	ObservedAnnotation = "vpaObservedContainers"
	InPlaceAnnotation  = "vpaInPlaceUpdated"
)

const namesSeparator = ", "

// Sized holds the new requests of a container, and the limits for them. Empty: no change.
type Sized struct {
	Requests, Limits corev1.ResourceList
	Notes            []string // how the values were adjusted
}

// Sizes returns, for each container of a pod in order, the requests from an autoscaler (W9.71).
// Containers of a pod with pod-level resources do not change, because their sum must fit these.
func Sizes(v *VerticalPodAutoscaler, pod *corev1.Pod, ranges Ranges) []Sized {
	out := make([]Sized, len(pod.Spec.Containers))
	if r := pod.Spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		return out
	}
	r, notes := Fit(v, pod, ranges)
	for i := range pod.Spec.Containers {
		name := pod.Spec.Containers[i].Name
		c := r.For(name)
		if c == nil {
			continue
		}
		out[i] = Sized{Requests: c.Target, Notes: notes[name]}
		if v.Spec.ResourcePolicy.Policy(name).requestsOnly() {
			continue
		}
		requests, limits := Actual(pod, name)
		standard := corev1.ResourceList{}
		if ranges.Container != nil {
			standard = ranges.Container.Default
		}
		var notes []string
		for _, n := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			q, set, why := limitFor(n, limits[n], requests[n], c.Target[n], standard[n])
			if set {
				if out[i].Limits == nil {
					out[i].Limits = corev1.ResourceList{}
				}
				out[i].Limits[n] = q
			}
			if why != "" {
				notes = append(notes, why)
			}
		}
		if out[i].Limits != nil {
			out[i].Notes = append(out[i].Notes, notes...)
		}
	}
	return out
}

// Admit sets the recommended requests of a pod that is being created (W9.71, W9.73).
func Admit(pod *corev1.Pod, v *VerticalPodAutoscaler, ranges Ranges) {
	names := make([]string, len(pod.Spec.Containers))
	var updates []string
	for i, s := range Sizes(v, pod, ranges) {
		c := &pod.Spec.Containers[i]
		names[i] = c.Name
		notes := slices.Clone(s.Notes)
		notes = append(notes, set(&c.Resources.Requests, s.Requests, "request")...)
		notes = append(notes, set(&c.Resources.Limits, s.Limits, "limit")...)
		if len(s.Requests)+len(s.Limits) > 0 {
			updates = append(updates, fmt.Sprintf("container %d: %s", i, strings.Join(notes, ", ")))
		}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if len(updates) > 0 {
		pod.Annotations[UpdatesAnnotation] = fmt.Sprintf("Pod resources updated by %s: %s", v.Name,
			strings.Join(updates, "; "))
	}
	pod.Annotations[ObservedAnnotation] = strings.Join(names, namesSeparator)
}

func set(list *corev1.ResourceList, to corev1.ResourceList, what string) (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(to)) {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = to[name]
		notes = append(notes, string(name)+" "+what)
	}
	return notes
}
