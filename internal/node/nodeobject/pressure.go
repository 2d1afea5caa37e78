package nodeobject

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/eviction"
)

// pressureConditions are the conditions of all pressures: whether the node is under it (L7.146), and why.
func pressureConditions(under []eviction.Pressure) []corev1.NodeCondition {
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
		if i := slices.IndexFunc(under, func(p eviction.Pressure) bool { return p.Kind == c.kind }); i >= 0 {
			cond.Status, cond.Reason, cond.Message = corev1.ConditionTrue, c.bad, c.badText+": "+under[i].Why
		}
		out = append(out, cond)
	}
	return out
}
