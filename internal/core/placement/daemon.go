package placement

import corev1 "k8s.io/api/core/v1"

// Suits checks a node against the pod's nodeName, node selector, required node affinity, and tolerations, but not
// against resources, ports, other pods, and node conditions (W4.10–W4.16). start: the pod may be scheduled there;
// stay: it may continue to run there.
func (p *Pod) Suits(node *corev1.Node) (start, stay bool) {
	pod := p.Object
	switch {
	case pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name, !matchesNode(p, node):
		return false, false
	case untolerated(node.Spec.Taints, pod, corev1.TaintEffectNoExecute):
		return false, false
	case untolerated(node.Spec.Taints, pod, corev1.TaintEffectNoSchedule):
		return false, true
	}
	return true, true
}
