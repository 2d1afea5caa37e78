package placement

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

// Rejection is the reason why a node agent refuses a pod (L3.12).
type Rejection struct {
	Reason  string
	Message string
	// what is missing, when that is the only reason: evicting others can help a critical pod (L3.40)
	Short []resources.Shortage
}

// Admit decides whether the node agent may run the pod beside the pods that are counted;
// nil means yes (L3.20–L3.26, L3.37). goos is the machine's operating system.
func (n *Node) Admit(p *Pod, goos string) *Rejection { return n.admit(p, goos, nil) }

func (n *Node) admit(p *Pod, goos string, served []corev1.ResourceName) *Rejection {
	pod, node := p.Object, n.Object
	if want, ok := pod.Labels[corev1.LabelOSStable]; ok && want != goos { // L3.24
		return &Rejection{Reason: "PodOSSelectorNodeLabelDoesNotMatch",
			Message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if os := pod.Spec.OS; os != nil && string(os.Name) != goos { // L3.25
		return &Rejection{Reason: "PodOSNotSupported",
			Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	if strictGroups(pod) && !offersStrictGroups(node) { // L3.26
		return &Rejection{Reason: "SupplementalGroupsPolicyNotSupported",
			Message: "SupplementalGroupsPolicy=Strict is not supported in this node"}
	}
	if short := resources.Fits(&n.Ledger, n.known(p.Demand, served)); len(short) > 0 { // L3.20
		s := short[0]
		return &Rejection{
			Reason: "OutOf" + string(s.Name),
			Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", s.Name,
				s.Requested, s.Used, s.Capacity),
			Short: short,
		}
	}
	switch {
	case !matchesNode(p, node): // L3.21
		return predicate(NodeAffinity, reasonNodeAffinity)
	case pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name: // L3.22
		return predicate(NodeName, reasonNodeName)
	case n.portTaken(p):
		return predicate(NodePorts, reasonPorts)
	case !resources.IsStatic(pod) && untolerated(node.Spec.Taints, pod, corev1.TaintEffectNoExecute): // L3.23
		return predicate(TaintToleration, "node(s) had taints that the pod didn't tolerate")
	}
	return nil
}

func predicate(f Filter, reason string) *Rejection {
	return &Rejection{Reason: string(f), Message: fmt.Sprintf("Predicate %s failed: %s", f, reason)}
}

// known leaves out extended resources that the node does not have: the agent ignores them, because
// their plugin may not have registered yet (L3.39).
func (n *Node) known(d resources.Demand, served []corev1.ResourceName) resources.Demand {
	var known []resources.Scalar
	for _, s := range d.Scalars {
		if slices.Contains(served, s.Name) {
			continue
		}
		if _, ok := n.Ledger.Allocatable.Scalar(s.Name); ok || !resources.IsExtended(s.Name) {
			known = append(known, s)
		}
	}
	d.Scalars = known
	return d
}

func strictGroups(pod *corev1.Pod) bool {
	sc := pod.Spec.SecurityContext
	return sc != nil && sc.SupplementalGroupsPolicy != nil &&
		*sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict
}

func offersStrictGroups(node *corev1.Node) bool {
	f := node.Status.Features
	return f != nil && f.SupplementalGroupsPolicy != nil && *f.SupplementalGroupsPolicy
}
