// Package placement decides on which node a pod runs: which nodes fit, which of them is best, which
// pods would have to be preempted, and the message when no node fits. The scheduler drives Cluster;
// the node agent drives Node for its own admission, so both apply the same rules.
//
// A Cluster is kept up to date pod by pod and node by node, so that the cost of a decision depends
// on the nodes, not on the number of all pods. Everything is a function of its arguments: no clock,
// no I/O, no goroutine, no random. One goroutine owns a Cluster.
//
// Contract: docs/spec/pod-lifecycle.md and docs/spec/workloads.md.
package placement

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"
	schedulingv1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"carob/internal/core/resources"
	"carob/internal/core/volume"
)

// Pod is one version of a pod, prepared for decisions: everything that would
// need parsing is parsed once.
type Pod struct {
	Object   *corev1.Pod // read only
	Demand   resources.Demand
	Ports    []HostPort
	Priority int32
	Claims   []volume.PodClaim // of its volumes

	profile      *Profile
	requests     resources.Demand // of Demand, what NodeResourcesFit checks
	required     nodeaffinity.RequiredNodeAffinity
	only         []string // names of the only nodes its affinity allows; nil for any
	nowhere      bool     // its affinity allows no node
	preferred    *nodeaffinity.PreferredSchedulingTerms
	affinity     []podTerm           // required, all of them
	antiAffinity []podTerm           // required, none of them
	attractions  []podTerm           // preferred; weight below zero for anti-affinity
	hardSpread   []spreadConstraint  // DoNotSchedule
	softSpread   []spreadConstraint  // ScheduleAnyway
	features     features.FeatureSet // that its node must declare
	controller   Owner               // zero when none

	byClass []corev1.ResourceName // extended resources that a DeviceClass provides where the node has none; sorted

	requirements, company string  // key of its group; computed once
	siblings              *string // name the pods it is spread from by default, as of siblingsAt
	siblingsAt            uint64

	node           *Node   // where the Cluster counts it; nil when nowhere
	namespaceIndex int     // position in Cluster.byNamespace
	places         []place // in Cluster.labelled
}

// Prepare is PrepareFor with the default profile.
func Prepare(pod *corev1.Pod) *Pod { return PrepareFor(pod, DefaultProfile()) }

// PrepareFor parses a pod that is placed by a profile. A malformed selector matches nothing; the API server
// refuses these pods, so this can happen only for objects that skipped validation.
func PrepareFor(pod *corev1.Pod, profile *Profile) *Pod {
	p := &Pod{
		Object:     pod,
		profile:    profile,
		Demand:     resources.DemandOf(pod),
		Ports:      hostPorts(pod),
		Priority:   schedulingv1.PodPriority(pod),
		Claims:     volume.PodClaims(pod),
		required:   nodeaffinity.GetRequiredNodeAffinity(pod),
		hardSpread: spreadConstraints(pod.Spec.TopologySpreadConstraints, pod.Labels, corev1.DoNotSchedule),
		softSpread: spreadConstraints(pod.Spec.TopologySpreadConstraints, pod.Labels, corev1.ScheduleAnyway),
		features:   neededFeatures(pod),
		controller: controllerOf(pod),
	}
	p.requests = profile.demand(p.Demand)
	if profile.enables(NodeAffinity) {
		p.only, p.nowhere = onlyNodes(pod)
	}
	affinity := pod.Spec.Affinity
	if affinity == nil {
		return p
	}
	if a := affinity.NodeAffinity; a != nil && len(a.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
		if terms, err := nodeaffinity.NewPreferredSchedulingTerms(
			a.PreferredDuringSchedulingIgnoredDuringExecution); err == nil {
			p.preferred = terms
		}
	}
	if a := affinity.PodAffinity; a != nil {
		p.affinity = podTerms(pod, a.RequiredDuringSchedulingIgnoredDuringExecution)
		p.attractions = append(p.attractions,
			weightedTerms(pod, a.PreferredDuringSchedulingIgnoredDuringExecution, 1)...)
	}
	if a := affinity.PodAntiAffinity; a != nil {
		p.antiAffinity = podTerms(pod, a.RequiredDuringSchedulingIgnoredDuringExecution)
		p.attractions = append(p.attractions,
			weightedTerms(pod, a.PreferredDuringSchedulingIgnoredDuringExecution, -1)...)
	}
	return p
}

// Profile is how the pod is placed; read only.
func (p *Pod) Profile() *Profile { return p.profile }

// ServeByClass sets which extended resources of the pod a DeviceClass provides on nodes that have
// none (S9.60).
func (p *Pod) ServeByClass(names []corev1.ResourceName) {
	if !slices.Equal(p.byClass, names) {
		p.byClass, p.requirements = names, ""
	}
}

// ServedByClass reports whether ServeByClass was last called with the same.
func (p *Pod) ServedByClass(names []corev1.ResourceName) bool { return slices.Equal(p.byClass, names) }

// Gated reports whether scheduling gates hold the pod back (L2.2).
func (p *Pod) Gated() bool { return p.profile.Gated && len(p.Object.Spec.SchedulingGates) > 0 }

// onlyNodes returns the nodes that required affinity names by metadata.name (like that of DaemonSet
// pods), if each of its terms does so. none: the terms contradict themselves.
func onlyNodes(pod *corev1.Pod) (names []string, none bool) {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, false
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		var in []string
		named := false
		for _, r := range terms[i].MatchFields {
			if r.Key != metav1.ObjectNameField || r.Operator != corev1.NodeSelectorOpIn {
				continue
			}
			if !named {
				in, named = slices.Clone(r.Values), true
			} else {
				in = slices.DeleteFunc(in, func(name string) bool { return !slices.Contains(r.Values, name) })
			}
		}
		if !named {
			return nil, false
		}
		names = append(names, in...)
	}
	slices.Sort(names)
	return slices.Compact(names), len(terms) > 0 && len(names) == 0
}

// neededFeatures returns the features that the pod's node must declare (L2.30). A pod whose needs
// can't be inferred needs none: its node refuses it if it must (L3.34).
func neededFeatures(pod *corev1.Pod) features.FeatureSet {
	needs, err := features.DefaultFramework.InferForPodScheduling(&features.PodInfo{Spec: &pod.Spec},
		version.MajorMinor(1, 37))
	if err != nil {
		return features.FeatureSet{}
	}
	return needs
}

// HostPort is a port a pod takes on its node.
type HostPort struct {
	Protocol corev1.Protocol
	IP       string // 0.0.0.0 for all addresses, :: for those of IPv6
	Port     int32
}

const allAddresses, allIPv6 = "0.0.0.0", "::"

// conflicts reports whether two pods cannot both have their ports (N7.28).
func (a HostPort) conflicts(b HostPort) bool {
	if a.Port != b.Port || a.Protocol != b.Protocol {
		return false
	}
	v6 := func(ip string) bool { return strings.Contains(ip, ":") }
	return a.IP == b.IP || a.IP == allAddresses || b.IP == allAddresses || a.IP == allIPv6 && v6(b.IP) ||
		b.IP == allIPv6 && v6(a.IP)
}

// hostPorts collects the host ports of the containers that run for the pod's whole life.
func hostPorts(pod *corev1.Pod) []HostPort {
	var ports []HostPort
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			h := HostPort{Protocol: p.Protocol, IP: p.HostIP, Port: p.HostPort}
			if h.Protocol == "" {
				h.Protocol = corev1.ProtocolTCP
			}
			if addr, err := netip.ParseAddr(h.IP); err == nil {
				h.IP = addr.Unmap().String() // one text for one address
			}
			if h.IP == "" {
				h.IP = allAddresses
			}
			ports = append(ports, h)
		}
	}
	for i := range pod.Spec.InitContainers {
		if resources.IsSidecar(&pod.Spec.InitContainers[i]) {
			add(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return ports
}

// selectorOf parses a label selector; nil selects nothing, as an unparsable one does.
func selectorOf(s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}
