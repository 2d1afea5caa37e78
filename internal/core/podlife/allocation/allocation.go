// Package allocation compares the resources that a pod's spec requests with those that the
// node has allocated to the pod and those that the runtime reports. An in-place resize
// changes the spec first, the allocation when the node admits it, and the runtime last.
//
// It is pure; core/podlife decides with it when a resize takes its next step.
//
// Contract: docs/spec/pod-lifecycle.md, L3.117–L3.128 and L4.32.
package allocation

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Pod holds the allocated resources of a pod. It is replaced as a whole and never changed.
type Pod struct {
	Containers []Container                  // init containers, then regular ones
	Whole      *corev1.ResourceRequirements // of the pod itself; nil if its spec has none
}

// Container holds the allocated resources of a container.
type Container struct {
	Name      string
	Resources corev1.ResourceRequirements
}

// Of returns everything that the spec of a pod requests.
func Of(pod *corev1.Pod) Pod {
	p := Pod{Whole: pod.Spec.Resources.DeepCopy()}
	p.Containers = make([]Container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			p.Containers = append(p.Containers, Container{list[i].Name, *list[i].Resources.DeepCopy()})
		}
	}
	return p
}

// For returns the allocation of a container, or nil for a container that it does not list.
func (p *Pod) For(container string) *corev1.ResourceRequirements {
	for i := range p.Containers {
		if p.Containers[i].Name == container {
			return &p.Containers[i].Resources
		}
	}
	return nil
}

// Covers reports whether the allocation is exactly what the pod's spec requests.
func (p *Pod) Covers(pod *corev1.Pod) bool {
	if (p.Whole == nil) != (pod.Spec.Resources == nil) || p.Whole != nil && !Same(p.Whole, pod.Spec.Resources) {
		return false
	}
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if a := p.For(list[i].Name); a == nil || !Same(a, &list[i].Resources) {
				return false
			}
		}
	}
	return true
}

// Apply returns a copy of the pod whose spec has the allocated resources instead of the requested ones.
func (p *Pod) Apply(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	for _, list := range [...][]corev1.Container{out.Spec.InitContainers, out.Spec.Containers} {
		for i := range list {
			if a := p.For(list[i].Name); a != nil {
				list[i].Resources = *a.DeepCopy()
			}
		}
	}
	out.Spec.Resources = p.Whole.DeepCopy()
	return out
}

// Effective returns the resources that a container runs with: its own resources, and the limits of
// its pod where it has none (L3.117j).
func Effective(pod, own *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if pod == nil {
		return own
	}
	all := own
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q := own.Limits[name]; !q.IsZero() {
			continue
		}
		if all == own {
			all = own.DeepCopy()
		}
		overlay(&all.Limits, pod.Limits, name)
	}
	return all
}

// Change lists what a running container needs to reach its allocation.
type Change struct {
	Due     bool
	Restart bool // its resize policy requires a restart (L3.126)
	Shrinks bool // a limit gets lower and none gets higher
}

// ChangeOf compares the effective resources of a container before and after an allocation.
// before is the change that is still due from an earlier allocation.
func ChangeOf(c *corev1.Container, had, gets *corev1.ResourceRequirements, before Change) Change {
	d := Change{Due: true, Restart: before.Restart}
	grows := false
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		was, is := had.Limits[name], gets.Limits[name]
		wasRequest, isRequest := had.Requests[name], gets.Requests[name]
		limit := is.Cmp(was)
		if limit == 0 && isRequest.Cmp(wasRequest) == 0 {
			continue
		}
		d.Shrinks = d.Shrinks || limit < 0 && !is.IsZero()
		grows = grows || limit > 0
		for i := range c.ResizePolicy {
			if p := &c.ResizePolicy[i]; p.ResourceName == name && p.RestartPolicy == corev1.RestartContainer {
				d.Restart = true
			}
		}
	}
	d.Shrinks = d.Shrinks && !grows
	return d
}

// EventText lists the resources of a resize for the message of an event. problem is why the
// resize failed; it may be empty.
func EventText(pod *corev1.Pod, generation int64, problem string) string {
	type sized struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	list := func(from []corev1.Container) (to []sized) {
		for i := range from {
			to = append(to, sized{from[i].Name, from[i].Resources})
		}
		return to
	}
	b, err := json.Marshal(struct {
		Resources      *corev1.ResourceRequirements `json:"resources,omitempty"`
		InitContainers []sized                      `json:"initContainers,omitempty"`
		Containers     []sized                      `json:"containers,omitempty"`
		Generation     int64                        `json:"generation"`
		Error          string                       `json:"error,omitempty"`
	}{pod.Spec.Resources, list(pod.Spec.InitContainers), list(pod.Spec.Containers), generation, problem})
	if err != nil {
		return fmt.Sprintf("{%q:%d}", "generation", generation)
	}
	return string(b)
}
