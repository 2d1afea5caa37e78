package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
	"carob/internal/core/volume"
)

// The reasons of the filters, word for word what users and tools match on (L2.20–L2.30).
const (
	reasonNodeName       = "node(s) didn't match the requested node name"
	reasonUnschedulable  = "node(s) were unschedulable"
	reasonTaints         = "node(s) had untolerated taint(s)"
	reasonNodeAffinity   = "node(s) didn't match Pod's node affinity/selector"
	reasonEnforced       = "node(s) didn't match scheduler-enforced node affinity"
	reasonPorts          = "node(s) didn't have free ports for the requested pod ports"
	reasonTooManyPods    = "Too many pods"
	reasonSpread         = "node(s) didn't match pod topology spread constraints"
	reasonSpreadLabel    = "node(s) didn't match pod topology spread constraints (missing required label)"
	reasonAffinity       = "node(s) didn't match pod affinity rules"
	reasonAntiAffinity   = "node(s) didn't match pod anti-affinity rules"
	reasonOthersAffinity = "node(s) didn't satisfy existing pods anti-affinity rules"
	reasonExcluded       = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
	reasonConflict       = "pod affinity terms conflict"
	reasonFeatures       = "node(s) didn't match Pod's required features"
)

// Filter names a filter that refused a node, for re-queueing: only a change that concerns the
// filter can make the pod fit there.
type Filter string

// The filters in the order in which they run (L2.10).
const (
	NodeName             Filter = "NodeName"
	NodeUnschedulable    Filter = "NodeUnschedulable"
	TaintToleration      Filter = "TaintToleration"
	NodeAffinity         Filter = "NodeAffinity"
	NodePorts            Filter = "NodePorts"
	NodeResourcesFit     Filter = "NodeResourcesFit"
	PodTopologySpread    Filter = "PodTopologySpread"
	InterPodAffinity     Filter = "InterPodAffinity"
	NodeDeclaredFeatures Filter = "NodeDeclaredFeatures"
	DynamicResources     Filter = "DynamicResources" // run by the scheduler, for nodes that the others accept

	// The same; implemented in core/volume. They are disabled together, with VolumeBinding.
	VolumeRestrictions = Filter(volume.Restrictions)
	NodeVolumeLimits   = Filter(volume.Limits)
	VolumeBinding      = Filter(volume.Binding)
	VolumeZone         = Filter(volume.Zone)
)

// Refusal is why a node can't take a pod: the result of the first failing filter.
type Refusal struct {
	Filter  Filter
	Reasons []string // more than one only for resources
	Curable bool     // removing pods from the node could help (L2.32)
}

// filter runs the filters in order; nil means that the pod fits.
func (s *state) filter(n *Node) *Refusal {
	if r := n.refuses(s.pod); r != nil {
		return r
	}
	if d := s.topology(n.index); d != accepted {
		return d.refusal()
	}
	return n.lacksFeatures(s.pod)
}

// topology runs the filters that also look at other nodes, for the node with this index.
func (s *state) topology(node int) denial {
	if d := s.hard.filter(node); d != accepted {
		return d
	}
	return s.affinity.filter(node)
}

// denial is the result of a filter that depends on other nodes: most decisions need only whether
// the node is accepted.
type denial uint8

const (
	accepted denial = iota
	spreadLabel
	spreadSkew
	affinityUnmet
	antiAffinityMet
	othersAntiAffinity
)

// refusal returns the same with the reasons; nil when the node is accepted.
func (d denial) refusal() *Refusal {
	switch d {
	case spreadLabel:
		return &Refusal{Filter: PodTopologySpread, Reasons: []string{reasonSpreadLabel}}
	case spreadSkew:
		return &Refusal{Filter: PodTopologySpread, Reasons: []string{reasonSpread}, Curable: true}
	case affinityUnmet:
		return &Refusal{Filter: InterPodAffinity, Reasons: []string{reasonAffinity}}
	case antiAffinityMet:
		return &Refusal{Filter: InterPodAffinity, Reasons: []string{reasonAntiAffinity}, Curable: true}
	case othersAntiAffinity:
		return &Refusal{Filter: InterPodAffinity, Reasons: []string{reasonOthersAffinity}, Curable: true}
	default:
		return nil
	}
}

// refuses runs the filters that depend only on the node and its own pods.
func (n *Node) refuses(p *Pod) *Refusal {
	pod, f := p.Object, p.profile
	switch {
	case pod.Spec.NodeName != "" && f.enables(NodeName) && pod.Spec.NodeName != n.Object.Name:
		return &Refusal{Filter: NodeName, Reasons: []string{reasonNodeName}}
	case n.Object.Spec.Unschedulable && f.enables(NodeUnschedulable) &&
		!Tolerates(pod.Spec.Tolerations,
			&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}):
		return &Refusal{Filter: NodeUnschedulable, Reasons: []string{reasonUnschedulable}}
	case len(n.Object.Spec.Taints) > 0 && f.enables(TaintToleration) &&
		untolerated(n.Object.Spec.Taints, pod, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute):
		return &Refusal{Filter: TaintToleration, Reasons: []string{reasonTaints}}
	case f.AddedRequired != nil && !f.AddedRequired.Match(n.Object) && f.enables(NodeAffinity):
		return &Refusal{Filter: NodeAffinity, Reasons: []string{reasonEnforced}}
	case !matchesNode(p, n.Object) && f.enables(NodeAffinity):
		return &Refusal{Filter: NodeAffinity, Reasons: []string{reasonNodeAffinity}}
	case len(p.Ports) > 0 && n.portTaken(p) && f.enables(NodePorts):
		return &Refusal{Filter: NodePorts, Reasons: []string{reasonPorts}, Curable: true}
	}
	if requests := n.requestsOf(p); !resources.FitsNow(&n.Ledger, requests) && f.enables(NodeResourcesFit) {
		return resourceRefusal(resources.Fits(&n.Ledger, requests))
	}
	return nil
}

// requestsOf is what a pod requests of the node itself: not resources that it lacks and that a
// class of devices serves (S9.60).
func (n *Node) requestsOf(p *Pod) resources.Demand {
	d := p.requests
	if len(p.byClass) == 0 {
		return d
	}
	d.Scalars = slices.DeleteFunc(slices.Clone(d.Scalars), func(s resources.Scalar) bool {
		has, _ := n.Ledger.Allocatable.Scalar(s.Name)
		return has == 0 && slices.Contains(p.byClass, s.Name)
	})
	return d
}

// lacksFeatures refuses a node that doesn't declare what the pod needs (L2.30).
func (n *Node) lacksFeatures(p *Pod) *Refusal {
	if p.features.IsEmpty() || !p.profile.enables(NodeDeclaredFeatures) {
		return nil
	}
	if has, err := p.features.IsSubset(n.features); err != nil || !has {
		return &Refusal{Filter: NodeDeclaredFeatures, Reasons: []string{reasonFeatures}}
	}
	return nil
}

// matchesNode reports whether nodeSelector and required node affinity allow the node.
func matchesNode(p *Pod, node *corev1.Node) bool {
	ok, err := p.required.Match(node)
	return ok && err == nil
}

func resourceRefusal(short []resources.Shortage) *Refusal {
	r := &Refusal{Filter: NodeResourcesFit, Curable: true}
	for _, s := range short {
		if s.Name == corev1.ResourcePods {
			r.Reasons = append(r.Reasons, reasonTooManyPods)
		} else {
			r.Reasons = append(r.Reasons, "Insufficient "+string(s.Name))
		}
		r.Curable = r.Curable && !s.Permanent()
	}
	return r
}
