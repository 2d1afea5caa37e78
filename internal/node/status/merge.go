package status

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podstatus"
)

// merge is want with the fields of other writers as they are in base: their conditions (first, L4.63), the scheduler's
// nomination, resource claims. DisruptionTarget belongs to its writer; the agent's own is in want. A condition that
// changed and changed back before it was written counts as unchanged: it keeps its time (L1.74).
func merge(base, want *corev1.PodStatus) corev1.PodStatus {
	m := *want
	m.NominatedNodeName = base.NominatedNodeName
	m.ResourceClaimStatuses = base.ResourceClaimStatuses
	m.ExtendedResourceClaimStatus = base.ExtendedResourceClaimStatus
	m.NodeAllocatableResourceClaimStatuses = base.NodeAllocatableResourceClaimStatuses
	if m.QOSClass == "" {
		m.QOSClass = base.QOSClass
	}
	if m.StartTime == nil {
		m.StartTime = base.StartTime
	}
	m.Conditions = make([]corev1.PodCondition, 0, len(want.Conditions)+1)
	disrupted := func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget }
	mine := slices.IndexFunc(want.Conditions, func(c corev1.PodCondition) bool {
		return disrupted(c) && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet
	})
	for _, c := range base.Conditions {
		if podstatus.OwnCondition(c.Type) || (disrupted(c) && mine >= 0) {
			continue
		}
		m.Conditions = append(m.Conditions, c)
	}
	for i, c := range want.Conditions {
		if !podstatus.OwnCondition(c.Type) && i != mine {
			continue
		}
		if old := slices.IndexFunc(base.Conditions,
			func(o corev1.PodCondition) bool { return o.Type == c.Type }); old >= 0 && !reasonCounts(c.Type) &&
			base.Conditions[old].Status == c.Status && !base.Conditions[old].LastTransitionTime.IsZero() {
			c.LastTransitionTime = base.Conditions[old].LastTransitionTime
		}
		m.Conditions = append(m.Conditions, c)
	}
	return m
}

// reasonCounts reports whether the condition's time changes with its reason (L4.56).
func reasonCounts(t corev1.PodConditionType) bool {
	return t == corev1.PodResizePending || t == corev1.PodResizeInProgress || t == corev1.DisruptionTarget
}
