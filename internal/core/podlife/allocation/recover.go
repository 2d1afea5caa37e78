package allocation

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Recover finds the allocation of a pod from before the agent was restarted, in the pod's
// status. With current, the node had admitted the current spec.
func Recover(pod *corev1.Pod, current bool) Pod {
	p := Of(pod)
	if current {
		return p
	}
	p.recoverWhole(pod)
	for _, list := range [...][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			if a := p.For(s.Name); a != nil && s.Resources != nil {
				replaceKnown(&a.Requests, s.AllocatedResources)
				replaceKnown(&a.Limits, s.Resources.Limits)
			}
		}
	}
	return p
}

// Outstanding returns what a running container still needs to get its allocation, according to
// its status from before the agent was restarted.
func (p *Pod) Outstanding(c *corev1.Container, s *corev1.ContainerStatus) Change {
	gets := p.For(c.Name)
	own := gets.DeepCopy()
	replaceKnown(&own.Requests, s.AllocatedResources)
	replaceKnown(&own.Limits, s.Resources.Limits)
	had := Effective(p.Whole, own).DeepCopy()
	replaceKnown(&had.Requests, s.Resources.Requests)
	replaceKnown(&had.Limits, s.Resources.Limits)
	return ChangeOf(c, had, Effective(p.Whole, gets), Change{})
}

// recoverWhole finds what the pod itself was allocated. Its status includes the overhead of
// its runtime class (L4.32a).
func (p *Pod) recoverWhole(pod *corev1.Pod) {
	st := &pod.Status
	if p.Whole == nil || st.AllocatedResources == nil || st.Resources == nil {
		return
	}
	// The status also has the sums of the containers, for resources that the pod's spec does not
	// set.
	replaceKnown(&p.Whole.Requests, named(without(st.AllocatedResources, pod.Spec.Overhead), p.Whole.Requests))
	replaceKnown(&p.Whole.Limits, named(without(st.Resources.Limits, pod.Spec.Overhead), p.Whole.Limits))
}

// named keeps the entries of a list that other has, too.
func named(list, other corev1.ResourceList) corev1.ResourceList {
	maps.DeleteFunc(list, func(name corev1.ResourceName, _ resource.Quantity) bool { _, ok := other[name]; return !ok })
	return list
}

// without subtracts less from a list.
func without(list, less corev1.ResourceList) corev1.ResourceList {
	list = list.DeepCopy()
	for name, q := range less { // in any order: entries are independent
		if have, ok := list[name]; ok {
			have.Sub(q)
			list[name] = have
		}
	}
	return list
}

// replaceKnown sets the CPU and memory of a list to the values in from. A list that has neither
// stays as it is: a resize cannot add a request or limit, so such a value is the pod's
// (L3.117j).
func replaceKnown(list *corev1.ResourceList, from corev1.ResourceList) {
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if _, named := (*list)[name]; !named {
			continue
		}
		if _, has := from[name]; !has || differs(*list, from, name, 0) {
			setOrDelete(list, from, name)
		}
	}
}
