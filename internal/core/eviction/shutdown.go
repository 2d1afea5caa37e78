package eviction

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

// ShutdownGroup is a group of pods that end together at a node shutdown, and their grace period
// (L7.155).
type ShutdownGroup struct {
	Priority int32 // the lowest priority in the group
	Grace    time.Duration
	Pods     []*corev1.Pod
}

// ShutdownStep is the time that pods have at a node shutdown if their priority is at least that of the
// step, and below that of the next one.
type ShutdownStep struct {
	Priority int32
	Grace    time.Duration
}

// ShutdownSteps returns the two steps for a total time, a part of which is reserved for critical pods.
func ShutdownSteps(total, critical time.Duration) []ShutdownStep {
	return []ShutdownStep{{0, total - critical}, {resources.ClusterCriticalPriority, critical}}
}

// ShutdownGroups returns the groups in order: the lowest priority first. A pod with a priority below all steps belongs
// to the first (S11.78). A group without pods is omitted. There must be a step.
func ShutdownGroups(pods []*corev1.Pod, steps []ShutdownStep) []ShutdownGroup {
	steps = slices.SortedFunc(slices.Values(steps), func(a, b ShutdownStep) int {
		return cmp.Compare(a.Priority, b.Priority)
	})
	groups := make([]ShutdownGroup, 0, len(steps))
	for _, s := range steps {
		groups = append(groups, ShutdownGroup{Priority: s.Priority, Grace: s.Grace})
	}
	for _, pod := range pods {
		priority := int32(0)
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		i := 0
		for i+1 < len(groups) && groups[i+1].Priority <= priority {
			i++
		}
		groups[i].Pods = append(groups[i].Pods, pod)
	}
	return slices.DeleteFunc(groups, func(g ShutdownGroup) bool { return len(g.Pods) == 0 })
}

// Within returns a pod's own grace period, limited to that of its group.
func (g *ShutdownGroup) Within(pod *corev1.Pod) time.Duration {
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		return min(time.Duration(min(*own, int64(g.Grace/time.Second)))*time.Second, g.Grace)
	}
	return g.Grace
}
