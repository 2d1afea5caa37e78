package placement

import corev1 "k8s.io/api/core/v1"

// Tolerates reports whether one of the tolerations covers the taint.
// Comparison operators are off in this version (L0.21) and match nothing.
func Tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	for i := range tolerations {
		if covers(&tolerations[i], taint) {
			return true
		}
	}
	return false
}

func covers(t *corev1.Toleration, taint *corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case corev1.TolerationOpExists:
		return true
	case "", corev1.TolerationOpEqual:
		return t.Value == taint.Value
	default:
		return false
	}
}

// untolerated reports whether the node has a taint of one of the effects that the pod doesn't tolerate.
func untolerated(taints []corev1.Taint, pod *corev1.Pod, effects ...corev1.TaintEffect) bool {
	for i := range taints {
		for _, effect := range effects {
			if taints[i].Effect == effect && !Tolerates(pod.Spec.Tolerations, &taints[i]) {
				return true
			}
		}
	}
	return false
}
