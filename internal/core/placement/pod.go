// Package placement decides where a pod goes: which nodes can take it, which of
// them is best, who would have to leave, and how to say why none fits. The
// scheduler drives Cluster; the node agent drives Node for its own admission, so
// both apply the same rules.
//
// A Cluster is kept up to date pod by pod and node by node, so that a decision
// costs what the nodes cost, never what all pods cost. Everything is a function
// of its arguments: no clock, no I/O, no goroutine, no random. One goroutine
// owns a Cluster.
package placement

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	schedulingv1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"carob/internal/core/resources"
)

// Pod is one version of a pod, prepared for decisions: everything that would
// need parsing is parsed once.
type Pod struct {
	Object   *corev1.Pod // read only
	Demand   resources.Demand
	Ports    []HostPort
	Priority int32

	required     nodeaffinity.RequiredNodeAffinity
	preferred    *nodeaffinity.PreferredSchedulingTerms
	affinity     []podTerm // required, all of them
	antiAffinity []podTerm // required, none of them
	attractions  []podTerm // preferred; weight below zero for anti-affinity
	spread       []spreadConstraint

	node           *Node // where the Cluster counts it; nil when nowhere
	namespaceIndex int   // position in Cluster.byNamespace
}

// Prepare parses a pod. A malformed selector matches nothing: the API server
// refuses such pods, so it can only stand in an object that skipped validation.
func Prepare(pod *corev1.Pod) *Pod {
	p := &Pod{
		Object:   pod,
		Demand:   resources.DemandOf(pod),
		Ports:    hostPorts(pod),
		Priority: schedulingv1.PodPriority(pod),
		required: nodeaffinity.GetRequiredNodeAffinity(pod),
		spread:   spreadConstraints(pod),
	}
	affinity := pod.Spec.Affinity
	if affinity == nil {
		return p
	}
	if a := affinity.NodeAffinity; a != nil && len(a.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
		if terms, err := nodeaffinity.NewPreferredSchedulingTerms(a.PreferredDuringSchedulingIgnoredDuringExecution); err == nil {
			p.preferred = terms
		}
	}
	if a := affinity.PodAffinity; a != nil {
		p.affinity = podTerms(pod, a.RequiredDuringSchedulingIgnoredDuringExecution)
		p.attractions = append(p.attractions, weightedTerms(pod, a.PreferredDuringSchedulingIgnoredDuringExecution, 1)...)
	}
	if a := affinity.PodAntiAffinity; a != nil {
		p.antiAffinity = podTerms(pod, a.RequiredDuringSchedulingIgnoredDuringExecution)
		p.attractions = append(p.attractions, weightedTerms(pod, a.PreferredDuringSchedulingIgnoredDuringExecution, -1)...)
	}
	return p
}

// HostPort is a port a pod takes on its node.
type HostPort struct {
	Protocol corev1.Protocol
	IP       string // 0.0.0.0 for all addresses
	Port     int32
}

const allAddresses = "0.0.0.0"

// conflicts reports whether two pods can't both have their port.
func (a HostPort) conflicts(b HostPort) bool {
	return a.Port == b.Port && a.Protocol == b.Protocol && (a.IP == b.IP || a.IP == allAddresses || b.IP == allAddresses)
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
			if h.IP == "" || h.IP == "::" {
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
