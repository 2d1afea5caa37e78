package object

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// pressureConditions says of each pressure whether the node is under it (L7.146).
func pressureConditions(under []corev1.NodeConditionType) []corev1.NodeCondition {
	var out []corev1.NodeCondition
	for _, c := range []struct {
		kind              corev1.NodeConditionType
		good, bad         string
		goodText, badText string
	}{
		{corev1.NodeMemoryPressure, "KubeletHasSufficientMemory", "KubeletHasInsufficientMemory",
			"kubelet has sufficient memory available", "kubelet has insufficient memory available"},
		{corev1.NodeDiskPressure, "KubeletHasNoDiskPressure", "KubeletHasDiskPressure",
			"kubelet has no disk pressure", "kubelet has disk pressure"},
		{corev1.NodePIDPressure, "KubeletHasSufficientPID", "KubeletHasInsufficientPID",
			"kubelet has sufficient PID available", "kubelet has insufficient PID available"},
	} {
		cond := corev1.NodeCondition{Type: c.kind, Status: corev1.ConditionFalse, Reason: c.good, Message: c.goodText}
		if slices.Contains(under, c.kind) {
			cond.Status, cond.Reason, cond.Message = corev1.ConditionTrue, c.bad, c.badText
		}
		out = append(out, cond)
	}
	return out
}
