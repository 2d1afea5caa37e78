package services

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// labelHeadless on a slice hides it from data planes (N0.20).
const labelHeadless = "service.kubernetes.io/headless"

// endpoint is one address and port behind a Service port.
type endpoint struct {
	at                                 netip.AddrPort
	pod                                types.UID // "" if it has no pod
	ready, serving, terminating, local bool
	zones                              []discoveryv1.ForZone
	nodes                              []discoveryv1.ForNode
}

// fallback reports whether an endpoint serves if none is ready (N2.3).
func (e *endpoint) fallback() bool { return !e.ready && e.serving && e.terminating }

// index finds the endpoints of Service ports in EndpointSlices (N2.1, N2.9), at the cost of those that it returns.
type index struct {
	family family
	node   string
	ports  map[portName][]slicePort
}

type portName struct {
	name  string
	proto Protocol
}

// slicePort is a port of a slice, with the slice.
type slicePort struct {
	number uint16
	of     *discoveryv1.EndpointSlice
}

func indexOf(f family, node string, list []*discoveryv1.EndpointSlice) index {
	x := index{family: f, node: node, ports: map[portName][]slicePort{}}
	for _, s := range bySliceName(list) {
		if _, headless := s.Labels[labelHeadless]; headless || s.AddressType != f.sliceType() {
			continue
		}
		for i := range s.Ports {
			if p := &s.Ports[i]; p.Port != nil && *p.Port > 0 && *p.Port <= 65535 {
				k := portName{nameOf(p), protocolOf(p.Protocol)}
				x.ports[k] = append(x.ports[k], slicePort{uint16(*p.Port), s})
			}
		}
	}
	return x
}

func (x index) of(port *corev1.ServicePort) []slicePort {
	return x.ports[portName{port.Name, protocolOf(&port.Protocol)}]
}

// size is at least the number of endpoints of a Service port.
func (x index) size(port *corev1.ServicePort) (n int) {
	for _, p := range x.of(port) {
		n += len(p.of.Endpoints)
	}
	return n
}

// gather returns the endpoints of a Service port, sorted by address.
func (x index) gather(port *corev1.ServicePort) []endpoint {
	byAddr := map[netip.AddrPort]endpoint{}
	for _, p := range x.of(port) {
		for j := range p.of.Endpoints {
			e, ok := endpointOf(x.family, x.node, p.number, &p.of.Endpoints[j])
			if !ok {
				continue
			}
			if _, have := byAddr[e.at]; !have || !e.terminating {
				byAddr[e.at] = e
			}
		}
	}
	out := make([]endpoint, 0, len(byAddr))
	// any order: sorted below
	for _, e := range byAddr {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b endpoint) int { return a.at.Compare(b.at) })
	return out
}

func nameOf(p *discoveryv1.EndpointPort) string {
	if p.Name == nil {
		return ""
	}
	return *p.Name
}

func endpointOf(f family, node string, port uint16, e *discoveryv1.Endpoint) (endpoint, bool) {
	if len(e.Addresses) == 0 {
		return endpoint{}, false
	}
	addr, ok := parse(e.Addresses[0])
	if !ok || !f.is(addr) || addr.IsUnspecified() || addr.IsMulticast() {
		return endpoint{}, false
	}
	or := func(b *bool, otherwise bool) bool {
		if b == nil {
			return otherwise
		}
		return *b
	}
	out := endpoint{at: netip.AddrPortFrom(addr, port), ready: or(e.Conditions.Ready, true),
		serving: or(e.Conditions.Serving, true), terminating: or(e.Conditions.Terminating, false),
		local: node != "" && e.NodeName != nil && *e.NodeName == node}
	if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
		out.pod = e.TargetRef.UID
	}
	if e.Hints != nil {
		out.zones, out.nodes = e.Hints.ForZones, e.Hints.ForNodes
	}
	return out, true
}

// bySliceName makes the result independent of the order in which slices came.
func bySliceName(list []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return slices.SortedFunc(slices.Values(list),
		func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
}

// usable are the endpoints that a node uses for connections to a Service port.
type usable struct {
	cluster, local []endpoint
	any            bool // any endpoint in the cluster takes connections (N2.8)
}

// choose selects the endpoints that this node uses (N2.3 to N2.8).
func choose(n Node, all []endpoint) usable {
	var u usable
	filter := func(ok func(*endpoint) bool) []endpoint {
		var out []endpoint
		for i := range all {
			if ok(&all[i]) {
				out = append(out, all[i])
			}
		}
		return out
	}
	near := nearby(n, all)
	if u.cluster = filter(func(e *endpoint) bool { return e.ready && near(e) }); len(u.cluster) == 0 {
		u.cluster = filter((*endpoint).fallback)
	}
	if u.local = filter(func(e *endpoint) bool { return e.ready && e.local }); len(u.local) == 0 {
		u.local = filter(func(e *endpoint) bool { return e.fallback() && e.local })
	}
	u.any = len(u.cluster) > 0 || len(u.local) > 0
	return u
}

// nearby returns which ready endpoints the hints leave to this node.
func nearby(n Node, all []endpoint) func(*endpoint) bool {
	onNode := func(e *endpoint) bool {
		return slices.ContainsFunc(e.nodes, func(h discoveryv1.ForNode) bool { return h.Name == n.Name })
	}
	inZone := func(e *endpoint) bool {
		return n.Zone != "" && slices.ContainsFunc(e.zones,
			func(h discoveryv1.ForZone) bool { return h.Name == n.Zone })
	}
	allNodes, allZones, hereNode, hereZone := true, true, false, false
	for i := range all {
		if e := &all[i]; e.ready {
			allNodes, allZones = allNodes && len(e.nodes) > 0, allZones && len(e.zones) > 0
			hereNode, hereZone = hereNode || onNode(e), hereZone || inZone(e)
		}
	}
	switch {
	case allNodes && hereNode:
		return onNode
	case allZones && hereZone:
		return inZone
	}
	return func(*endpoint) bool { return true }
}
