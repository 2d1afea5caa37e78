package resources

import (
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/component-helpers/resource"
)

const (
	oomProtected  = -997 // Guaranteed and node-critical
	oomBestEffort = 1000
	oomLowest     = 3 // of a Burstable container
)

// OOMScoreAdj returns the oom_score_adj of a container's processes (L3.119). nodeMemory is the machine's capacity in
// bytes.
func OOMScoreAdj(pod *corev1.Pod, c *corev1.Container, nodeMemory int64) int64 {
	if IsNodeCritical(pod) {
		return oomProtected
	}
	switch QoS(pod) {
	case corev1.PodQOSGuaranteed:
		return oomProtected
	case corev1.PodQOSBestEffort:
		return oomBestEffort
	}
	if nodeMemory <= 0 {
		return oomBestEffort - 1
	}
	request := c.Resources.Requests.Memory().Value()
	if IsSidecar(c) {
		request = max(request, smallestRequest(pod))
	}
	request += unassigned(pod)
	return min(max(oomBestEffort-oomBestEffort*request/nodeMemory, oomLowest), oomBestEffort-1)
}

// smallestRequest is the smallest memory request of a regular container.
func smallestRequest(pod *corev1.Pod) int64 {
	smallest := int64(-1)
	for i := range pod.Spec.Containers {
		if r := pod.Spec.Containers[i].Resources.Requests.Memory().Value(); smallest < 0 || r < smallest {
			smallest = r
		}
	}
	return max(smallest, 0)
}

// unassigned returns each container's equal share of the pod-level memory request beyond the
// requests of containers.
func unassigned(pod *corev1.Pod) int64 {
	if !podresources.IsPodLevelRequestsSet(pod) {
		return 0
	}
	sharers := int64(len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		if IsSidecar(&pod.Spec.InitContainers[i]) {
			sharers++
		}
	}
	claimed := podresources.AggregateContainerRequests(pod, podresources.PodResourcesOptions{})
	remainder := pod.Spec.Resources.Requests.Memory().Value() - claimed.Memory().Value()
	if remainder <= 0 || sharers == 0 {
		return 0
	}
	return remainder / sharers
}
