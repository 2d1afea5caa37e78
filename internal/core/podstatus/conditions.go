package podstatus

import corev1 "k8s.io/api/core/v1"

// OwnCondition reports whether only the node agent writes conditions of a type (L1.73, L4.8).
func OwnCondition(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodScheduled, corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady,
		corev1.PodReady, corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting:
		return true
	}
	return false
}

// Condition returns the condition of a type, or nil.
func Condition(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

// ConditionTrue reports whether the condition of a type is True.
func ConditionTrue(list []corev1.PodCondition, t corev1.PodConditionType) bool {
	c := Condition(list, t)
	return c != nil && c.Status == corev1.ConditionTrue
}
