package placement

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	"carob/internal/core/resources"
)

// Event is a change of the cluster, if a pod that fitted nowhere may fit after it. The methods
// that change a Cluster return it; the zero value makes no pod fit.
type Event struct {
	filters []Filter // whose results may have changed; those of all others have not

	before, after            *Pod // versions of a pod with a node; nil: added or removed
	node                     *Node
	nodeBefore, nodeAfter    *corev1.Node // nil: added or removed
	namespaceChanged, owners bool
	reserved                 string // the node on which the nomination of before ended; else empty
}

// Nothing reports whether the event can make no pod fit.
func (e Event) Nothing() bool { return len(e.filters) == 0 && !e.owners }

// localFilters are the filters that depend on one node and its pods only.
func localFilters() []Filter {
	return []Filter{NodeName, NodeUnschedulable, TaintToleration, NodeAffinity, NodePorts, NodeResourcesFit,
		NodeDeclaredFeatures}
}

// topologyFilters are the filters that also depend on other nodes.
func topologyFilters() []Filter { return []Filter{PodTopologySpread, InterPodAffinity} }

// podEvent compares two versions of a pod that is counted on n.
func podEvent(before, after *Pod, n *Node) Event {
	e := Event{before: before, after: after, node: n}
	switch {
	case before == nil:
		e.filters = topologyFilters()
	case after == nil:
		e.filters = append(topologyFilters(), NodePorts, NodeResourcesFit)
	default:
		if !maps.Equal(before.Object.Labels, after.Object.Labels) ||
			(before.Object.DeletionTimestamp == nil) != (after.Object.DeletionTimestamp == nil) {
			e.filters = topologyFilters()
		}
		if shrank(before.Demand, after.Demand) {
			e.filters = append(e.filters, NodeResourcesFit)
		}
	}
	return e
}

// shrank reports whether a pod holds less of any resource than before.
func shrank(before, after resources.Demand) bool {
	if after.MilliCPU < before.MilliCPU || after.Memory < before.Memory ||
		after.EphemeralStorage < before.EphemeralStorage {
		return true
	}
	return slices.ContainsFunc(before.Scalars, func(s resources.Scalar) bool {
		left, _ := after.Scalar(s.Name)
		return left < s.Value
	})
}

// nodeEvent compares two versions of a node; heartbeats change nothing.
func nodeEvent(before, after *corev1.Node, n *Node) Event {
	e := Event{node: n, nodeBefore: before, nodeAfter: after}
	switch {
	case before == nil:
		e.filters = append(localFilters(), topologyFilters()...)
		return e
	case after == nil:
		e.filters = topologyFilters()
		return e
	}
	if before.Spec.Unschedulable && !after.Spec.Unschedulable {
		e.filters = append(e.filters, NodeUnschedulable)
	}
	if !equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) {
		e.filters = append(e.filters, TaintToleration, PodTopologySpread)
	}
	if !maps.Equal(before.Labels, after.Labels) {
		e.filters = append(e.filters, NodeAffinity, PodTopologySpread, InterPodAffinity)
	}
	if !equality.Semantic.DeepEqual(before.Status.Allocatable, after.Status.Allocatable) {
		e.filters = append(e.filters, NodeResourcesFit)
	}
	if !slices.Equal(before.Status.DeclaredFeatures, after.Status.DeclaredFeatures) {
		e.filters = append(e.filters, NodeDeclaredFeatures)
	}
	return e
}

// Helps reports whether the pod is worth another attempt after the event: one of the filters that
// refused it may have another result now (L2.5). If it returns false, neither Decide nor Preempt
// can find a node that it did not find before. refused lists the filters that Decide and Preempt
// returned; empty when there was no node at all. Without another attempt, the returned filters are
// those for the next event: refused, and the filter that refuses the changed node now.
func (c *Cluster) Helps(p *Pod, refused []Filter, e Event) (bool, []Filter) {
	if len(refused) == 0 {
		return e.nodeBefore == nil && e.nodeAfter != nil, refused
	}
	if e.owners && slices.Contains(refused, PodTopologySpread) && len(p.Object.Spec.TopologySpreadConstraints) == 0 {
		return true, refused
	}
	if e.node != nil && e.node.name == p.Object.Status.NominatedNodeName && e.before != nil && e.after == nil {
		return true, refused // while its victims terminate on this node, it preempts on no other
	}
	if slices.Contains(refused, Extender) && !e.Nothing() {
		return true, refused
	}
	byNode := func(f Filter) bool {
		return f == DynamicResources || f == VolumeBinding || f == VolumeZone || f == NodeVolumeLimits
	}
	if slices.ContainsFunc(refused, byNode) && e.before == nil && e.after == nil && e.nodeAfter != nil &&
		!e.Nothing() {
		return true, refused // devices and volumes depend on the labels of nodes (S9.30, S2.30)
	}
	nodeChecked := false
	for _, f := range e.filters {
		if !slices.Contains(refused, f) {
			continue
		}
		switch f {
		case PodTopologySpread:
			if c.mayLevel(p, e) {
				return true, refused
			}
		case InterPodAffinity:
			if c.mayAttract(p, e) {
				return true, refused
			}
		default:
			if nodeChecked {
				continue
			}
			nodeChecked = true
			opened, by := c.opens(p, e.node)
			if opened {
				return true, refused
			}
			if by != "" && !slices.Contains(refused, by) {
				refused = append(slices.Clip(refused), by)
			}
		}
	}
	return false, refused
}

// opens runs the filters on the changed node, including the pods that are nominated to it: the
// event helps if they accept the pod, or would accept it without less important pods. If not, the
// result is the filter that refuses it; empty if there is no such node.
func (c *Cluster) opens(p *Pod, n *Node) (bool, Filter) {
	if n == nil || n.Object == nil {
		return false, ""
	}
	lesser := slices.ContainsFunc(n.pods, func(o *Pod) bool { return o.Priority < p.Priority })
	if ahead := c.reservations(n, p); len(ahead) > 0 {
		n = n.with(ahead)
	}
	r := n.refuses(p)
	if r == nil {
		r = n.lacksFeatures(p)
	}
	if r == nil {
		return true, ""
	}
	return r.Curable && lesser && !c.victimsEnd(p), r.Filter
}

// mayLevel reports whether the event can change the result of topology spread for p.
func (c *Cluster) mayLevel(p *Pod, e Event) bool {
	hard := c.spreadOf(p, true)
	if e.before != nil || e.after != nil {
		return slices.ContainsFunc(hard.constraints, func(s spreadConstraint) bool {
			return e.either(func(o *Pod) bool {
				return o.Object.Namespace == p.Object.Namespace && s.selector.Matches(labels.Set(o.Object.Labels))
			})
		})
	}
	return slices.ContainsFunc(hard.constraints, func(s spreadConstraint) bool { return e.hasLabel(s.key) })
}

// mayAttract reports whether the event can change the result of required pod affinity for p, in either
// direction.
func (c *Cluster) mayAttract(p *Pod, e Event) bool {
	switch {
	case e.namespaceChanged:
		return true
	case e.before == nil && e.after == nil: // a node
		keyed := func(t podTerm) bool { return e.hasLabel(t.topologyKey) }
		return len(c.antiAffine) > 0 || c.repelling > 0 || slices.ContainsFunc(p.affinity, keyed) ||
			slices.ContainsFunc(p.antiAffinity, keyed)
	}
	return e.either(func(o *Pod) bool {
		return meetsAll(c, p.affinity, o.Object) || meetsAny(c, p.antiAffinity, o.Object) ||
			meetsAny(c, o.antiAffinity, p.Object)
	})
}

// either reports whether f holds for a version of the pod.
func (e Event) either(f func(*Pod) bool) bool {
	return e.before != nil && f(e.before) || e.after != nil && f(e.after)
}

// hasLabel reports whether a version of the node has the label.
func (e Event) hasLabel(key string) bool {
	for _, n := range []*corev1.Node{e.nodeBefore, e.nodeAfter} {
		if n != nil {
			if _, ok := n.Labels[key]; ok {
				return true
			}
		}
	}
	return false
}

// OwnChange returns the filters whose result for a waiting pod may change after an update of the
// pod itself, and whether anything that a decision reads has changed.
func OwnChange(before, after *Pod) (filters []Filter, changed bool) {
	a, b := before.Object, after.Object
	if !maps.Equal(a.Labels, b.Labels) {
		filters = append(filters, PodTopologySpread, InterPodAffinity)
	}
	if !equality.Semantic.DeepEqual(a.Spec.Tolerations, b.Spec.Tolerations) {
		filters = append(filters, NodeUnschedulable, TaintToleration, PodTopologySpread)
	}
	if before.Demand.MilliCPU != after.Demand.MilliCPU || before.Demand.Memory != after.Demand.Memory ||
		shrank(before.Demand, after.Demand) {
		filters = append(filters, NodeResourcesFit)
	}
	if !equality.Semantic.DeepEqual(a.Status.ResourceClaimStatuses, b.Status.ResourceClaimStatuses) {
		filters = append(filters, DynamicResources)
	}
	rest := a.Spec.DeepCopy()
	rest.Tolerations = b.Spec.Tolerations
	rest.Containers, rest.InitContainers, rest.Resources = b.Spec.Containers, b.Spec.InitContainers, b.Spec.Resources
	rest.EphemeralContainers = b.Spec.EphemeralContainers
	if !equality.Semantic.DeepEqual(rest, &b.Spec) {
		return append(append(localFilters(), topologyFilters()...), DynamicResources), true
	}
	return filters, len(filters) > 0
}

// meetsAny reports whether one of the terms selects the pod.
func meetsAny(c *Cluster, terms []podTerm, pod *corev1.Pod) bool {
	return slices.ContainsFunc(terms, func(t podTerm) bool { return t.matches(c, pod) })
}
