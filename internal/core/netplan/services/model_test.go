package services

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// model implements the clauses of N2 for a packet naively from the objects: without tables,
// differences, or an order of rules. It shares no code with the package on purpose.
func model(n Node, objects []Input, p Packet) Decision {
	var served []Input
	for _, in := range objects {
		s := in.Service
		if s == nil || s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == "None" ||
			s.Spec.ClusterIP == "" || s.Labels["service.kubernetes.io/service-proxy-name"] != "" {
			continue
		}
		if addrIn(s.Spec.ClusterIPs, p.To.Addr.Is6()).IsValid() {
			served = append(served, in)
		}
	}
	slices.SortFunc(served, func(a, b Input) int {
		return cmp.Or(a.Service.CreationTimestamp.Compare(b.Service.CreationTimestamp.Time),
			strings.Compare(a.Name.Namespace, b.Name.Namespace), strings.Compare(a.Name.Name, b.Name.Name))
	})
	taken := map[netip.Addr]bool{}
	served = slices.DeleteFunc(served, func(in Input) bool {
		ip := addrIn(in.Service.Spec.ClusterIPs, p.To.Addr.Is6())
		twice := taken[ip]
		taken[ip] = true
		return twice
	})
	type claim struct {
		rank int
		in   Input
		port corev1.ServicePort
	}
	claims := func(addr netip.Addr, node bool) *claim {
		var all []claim
		for _, in := range served {
			for _, port := range in.Service.Spec.Ports {
				if protocolNumber(port.Protocol) != p.To.Proto {
					continue
				}
				c := claim{-1, in, port}
				s := in.Service
				at := int32(p.To.Port)
				switch {
				case node:
					if port.NodePort == at {
						c.rank = 1
					}
				case port.Port != at:
				case addrIn(s.Spec.ClusterIPs, addr.Is6()) == addr:
					c.rank = 0
				case slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
					return i.IP == addr.String() && (i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP)
				}):
					c.rank = 2
				case slices.Contains(s.Spec.ExternalIPs, addr.String()):
					c.rank = 3
				}
				if c.rank > 0 {
					for _, own := range map[Protocol][]netip.AddrPort{TCP: n.Own, UDP: n.OwnUDP}[p.To.Proto] {
						if own.Port() == p.To.Port && (node || own.Addr() == addr ||
							own.Addr().IsUnspecified() && slices.Contains(n.Addresses, addr)) {
							c.rank = -1
						}
					}
				}
				if c.rank >= 0 {
					all = append(all, c)
				}
			}
		}
		if len(all) == 0 {
			return nil
		}
		best := slices.MinFunc(all, func(a, b claim) int { return cmp.Compare(a.rank, b.rank) })
		return &best // the oldest of its rank: served is sorted
	}
	fromPod := slices.ContainsFunc(n.Pods, func(r netip.Prefix) bool { return r.Contains(p.Source) })

	refused := Pass
	for _, node := range []bool{false, true} {
		if node && !slices.Contains(n.Addresses, p.To.Addr) {
			continue
		}
		c := claims(p.To.Addr, node)
		if c == nil {
			continue
		}
		s := c.in.Service
		if c.rank == 2 && len(s.Spec.LoadBalancerSourceRanges) > 0 && !sourceAllowed(n, s, p) {
			return Decision{Outcome: Dropped}
		}
		cluster, local := endpointsFor(n, c.in, c.port, p.To.Addr.Is6())
		d := Decision{Outcome: Forward}
		if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
			d.Timeout = uint32(*s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds)
		}
		switch {
		case c.rank == 0 && s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == "Local":
			d.List, d.Masquerade = local, !fromPod // N2.21, N2.22
		case c.rank == 0:
			d.List, d.Masquerade = cluster, !fromPod
		case s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal:
			d.List, d.Masquerade = cluster, true // N2.32
		case fromPod || p.FromNode:
			d.List, d.Masquerade = cluster, p.FromNode // N2.33
		default:
			d.List = local
		}
		if c.rank > 0 && taken[p.To.Addr] {
			d.Masquerade = d.Masquerade || !fromPod // another Service's cluster IP
		}
		if len(d.List) > 0 {
			return d
		}
		if refused == Pass {
			if refused = Rejected; len(cluster) > 0 {
				refused = Dropped
			}
		}
	}
	if refused != Pass {
		return Decision{Outcome: refused}
	}
	if taken[p.To.Addr] {
		return Decision{Outcome: Rejected} // N2.15
	}
	return Decision{}
}

func addrIn(list []string, v6 bool) netip.Addr {
	for _, text := range list {
		if a := netip.MustParseAddr(text); a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}

func protocolNumber(p corev1.Protocol) Protocol {
	return map[corev1.Protocol]Protocol{"TCP": 6, "UDP": 17, "SCTP": 132}[p]
}

func sourceAllowed(n Node, s *corev1.Service, p Packet) bool {
	var ranges []netip.Prefix
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		if r := netip.MustParsePrefix(strings.TrimSpace(text)); r.Addr().Is6() == p.To.Addr.Is6() {
			ranges = append(ranges, r)
		}
	}
	if len(ranges) == 0 {
		return true // N2.36
	}
	for _, r := range ranges {
		if r.Contains(p.Source) {
			return true
		}
		if slices.ContainsFunc(n.Addresses, r.Contains) { // N2.37
			for _, i := range s.Status.LoadBalancer.Ingress {
				if i.IP == p.Source.String() && (i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP) {
					return true
				}
			}
		}
	}
	return false
}

// endpointsFor returns the lists of N2.3 to N2.9.
func endpointsFor(n Node, in Input, port corev1.ServicePort, v6 bool) (cluster, local []netip.AddrPort) {
	type info struct{ ready, falling, here, hintNode, hintZone, anyNode, anyZone, terminating bool }
	found := map[netip.AddrPort]info{}
	list := slices.Clone(in.Slices)
	slices.SortFunc(list, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	for _, s := range list {
		_, hidden := s.Labels["service.kubernetes.io/headless"]
		if hidden || s.AddressType == discoveryv1.AddressTypeFQDN ||
			(s.AddressType == discoveryv1.AddressTypeIPv6) != v6 {
			continue
		}
		for _, sp := range s.Ports {
			if sp.Port == nil || *sp.Name != port.Name || *sp.Protocol != port.Protocol {
				continue
			}
			for _, e := range s.Endpoints {
				at := netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*sp.Port))
				i := info{ready: e.Conditions.Ready == nil || *e.Conditions.Ready,
					terminating: e.Conditions.Terminating != nil && *e.Conditions.Terminating,
					here:        e.NodeName != nil && *e.NodeName == n.Name}
				i.falling = i.terminating && !i.ready && (e.Conditions.Serving == nil || *e.Conditions.Serving)
				if e.Hints != nil {
					i.anyNode, i.anyZone = len(e.Hints.ForNodes) > 0, len(e.Hints.ForZones) > 0
					for _, h := range e.Hints.ForNodes {
						i.hintNode = i.hintNode || h.Name == n.Name
					}
					for _, h := range e.Hints.ForZones {
						i.hintZone = i.hintZone || n.Zone != "" && h.Name == n.Zone
					}
				}
				if _, twice := found[at]; twice && i.terminating {
					continue // N2.9
				}
				found[at] = i
			}
		}
	}
	every := func(ok func(info) bool) bool {
		for _, i := range found {
			if i.ready && !ok(i) {
				return false
			}
		}
		return true
	}
	pick := func(ok func(info) bool) (out []netip.AddrPort) {
		for at, i := range found {
			if ok(i) {
				out = append(out, at)
			}
		}
		return out
	}
	first := func(lists ...[]netip.AddrPort) []netip.AddrPort {
		for _, l := range lists {
			if len(l) > 0 {
				return l
			}
		}
		return nil
	}
	var byNode, byZone []netip.AddrPort
	if every(func(i info) bool { return i.anyNode }) {
		byNode = pick(func(i info) bool { return i.ready && i.hintNode })
	}
	if every(func(i info) bool { return i.anyZone }) {
		byZone = pick(func(i info) bool { return i.ready && i.hintZone })
	}
	cluster = first(byNode, byZone, pick(func(i info) bool { return i.ready }),
		pick(func(i info) bool { return i.falling }))
	local = first(pick(func(i info) bool { return i.ready && i.here }),
		pick(func(i info) bool { return i.falling && i.here }))
	return cluster, local
}
