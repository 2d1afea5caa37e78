package placement

import corev1 "k8s.io/api/core/v1"

// Suits says whether a node is one for the pod by what the pod itself asks of nodes: nodeName, selector and required
// node affinity, taints. start is whether the pod may be placed there, stay whether it may run on when it is there
// already. What else runs on the node, and how the node does, plays no role (W4.10–W4.16).
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
