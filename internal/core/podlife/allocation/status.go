package allocation

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"carob/internal/core/resources"
)

// Status is the status of the resources of a whole pod (L4.32a).
type Status struct {
	Requests corev1.ResourceList          // allocatedResources
	Pending  *corev1.ResourceRequirements // resources until the pod runs: the sums of its containers
	Running  *corev1.ResourceRequirements // resources while it runs: the values of its cgroup
}

// StatusOf computes the status of a pod whose allocation is its spec. cgroupV2 is true on a node
// with the unified hierarchy only, which rounds CPU requests.
func StatusOf(pod *corev1.Pod, cgroupV2 bool) Status {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	var s Status
	if len(requests) > 0 {
		s.Requests = requests
	}
	if len(requests)+len(limits) == 0 {
		return s
	}
	s.Pending = &corev1.ResourceRequirements{Requests: s.Requests}
	if len(limits) > 0 {
		s.Pending.Limits = limits
	}
	s.Running = &corev1.ResourceRequirements{}
	if p := pod.Spec.Resources; p != nil {
		s.Running = p.DeepCopy()
	}
	if _, named := s.Running.Requests[corev1.ResourceMemory]; !named {
		overlay(&s.Running.Requests, requests, corev1.ResourceMemory)
	}
	showCPU(s.Running, resources.PodCgroup(pod).CPUShares, cgroupV2)
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		had, is := s.Running.Limits[name], limits[name]
		least := name == corev1.ResourceCPU && had.MilliValue() <= leastCPULimit && is.MilliValue() <= leastCPULimit
		if !least && allLimited(pod, name) { // else the pod's cgroup has no limit (L3.117f)
			overlay(&s.Running.Limits, limits, name)
		}
	}
	return s
}

// showCPU replaces the CPU request of the pod's spec by the one that its cgroup corresponds to.
// The spec's value stays if it results in the same cgroup, or if both are close to zero.
func showCPU(running *corev1.ResourceRequirements, shares uint64, cgroupV2 bool) {
	own := running.Requests[corev1.ResourceCPU]
	shown := resources.SharesMilliCPU(shares, cgroupV2)
	if shown <= leastCPURequest && own.MilliValue() <= leastCPURequest ||
		shown == resources.SharesMilliCPU(resources.CPUShares(own.MilliValue()), cgroupV2) {
		return
	}
	if running.Requests == nil {
		running.Requests = corev1.ResourceList{}
	}
	running.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(shown, resource.DecimalSI)
}

// allLimited reports whether the pod, or else each of its containers, has a limit.
func allLimited(pod *corev1.Pod, name corev1.ResourceName) bool {
	if p := pod.Spec.Resources; p != nil {
		if _, ok := p.Limits[name]; ok {
			return true
		}
	}
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if q, ok := list[i].Resources.Limits[name]; !ok || q.IsZero() {
				return false
			}
		}
	}
	return true
}
