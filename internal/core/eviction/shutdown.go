package eviction

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ShutdownGroup is a group of pods that end together at a node shutdown, and their grace period
// (L7.155).
type ShutdownGroup struct {
	Priority int32 // the lowest priority in the group
	Grace    time.Duration
	Pods     []*corev1.Pod
}

// criticalPriority is the lowest system-cluster-critical priority (L0.64).
const criticalPriority = 2_000_000_000

// ShutdownGroups returns the groups in order: regular pods first, with the part of the total time
// that critical pods leave. A group without pods or time is omitted.
func ShutdownGroups(pods []*corev1.Pod, total, critical time.Duration) []ShutdownGroup {
	groups := []ShutdownGroup{{Priority: 0, Grace: total - critical}, {Priority: criticalPriority, Grace: critical}}
	for _, pod := range pods {
		priority := int32(0)
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		i := 0
		if priority >= criticalPriority {
			i = 1
		}
		groups[i].Pods = append(groups[i].Pods, pod)
	}
	return slices.DeleteFunc(groups, func(g ShutdownGroup) bool { return len(g.Pods) == 0 })
}

// Within is a pod's own grace period, limited to that of its group.
func (g *ShutdownGroup) Within(pod *corev1.Pod) time.Duration {
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		return min(time.Duration(*own)*time.Second, g.Grace)
	}
	return g.Grace
}
