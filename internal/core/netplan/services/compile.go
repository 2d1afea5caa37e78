package services

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"carob/internal/core/netplan"
)

// labelProxyName on a Service assigns it to another data plane (N2.23).
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// compiled holds the entries of one Service in the tables, if no other Service has its addresses.
type compiled struct {
	age   int64 // creation time in seconds: the older of two claimants wins
	ip    netip.Addr
	vips  map[Port]vip
	lists map[List][]endpoint // none is empty
	// timeout is for how many seconds clients keep their endpoint; 0: no affinity.
	timeout uint32
	// problems are reported to the user.
	problems []string
	flows    map[Port][]netip.AddrPort
	// noLocalIn, noLocalOut count ports with a Local policy whose endpoints are elsewhere (N9.4).
	noLocalIn, noLocalOut int
}

// rank orders claims to the same address and port: an external address never takes a cluster IP.
type rank uint8

const (
	rankCluster rank = iota
	rankNodePort
	rankBalancer
	rankExternal
)

// vip defines the handling of connections to an address and port of a Service.
type vip struct {
	rank       rank
	dispatch   route // N = 0: none
	inside     route
	masquerade bool
	verdict    verdict
	guarded    bool
	sources    []netip.Prefix
}

// route is a Target whose list has no number yet.
type route struct {
	list List
	Class
}

// Programmed reports whether data planes serve a Service at all (N0.20, N2.23, N2.74).
func Programmed(s *corev1.Service) bool {
	_, other := s.Labels[labelProxyName]
	return !other && s.Spec.Type != corev1.ServiceTypeExternalName && !netplan.Headless(s)
}

// clusterIP is the Service's cluster IP of a family; invalid if it has none.
func clusterIP(f family, s *corev1.Service) netip.Addr {
	all := s.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{s.Spec.ClusterIP}
	}
	for _, text := range all {
		if a, ok := parse(text); ok && f.is(a) && !a.IsUnspecified() {
			return a
		}
	}
	return netip.Addr{}
}

// compile compiles one Service, independent of others. It returns nil for one that is not
// programmed.
func compile(f family, n Node, s *corev1.Service, slicesOf []*discoveryv1.EndpointSlice) *compiled {
	if s == nil || !Programmed(s) {
		return nil
	}
	ip := clusterIP(f, s)
	if !ip.IsValid() {
		return nil
	}
	c := &compiled{age: s.CreationTimestamp.Unix(), ip: ip, vips: map[Port]vip{}, lists: map[List][]endpoint{},
		timeout: affinity(s)}
	all, external := indexOf(f, n.Name, slicesOf), externals(f, n, s)
	room := maxEntries
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		proto := protocolOf(&p.Protocol)
		if p.Port <= 0 || p.Port > 65535 || proto == 0 {
			continue
		}
		at := Port{ip, proto, uint16(p.Port)}
		if c.vips[at].verdict != pass || c.vips[at].dispatch.N > 0 {
			continue
		}
		if room -= all.size(p) + entries(external); room < 0 {
			c.problems = append(c.problems, fmt.Sprintf("%s and the ports behind it are not served: the endpoints, "+
				"addresses, and source ranges of a Service are together at most %d for all its ports", at, maxEntries))
			break
		}
		c.port(f, n, s, p, at, external, all.gather(p))
	}
	return c
}

// maxEntries is about how many entries of the tables one Service may have: whoever may write Services can multiply
// thousands of ports by as many endpoints or addresses.
const maxEntries = 1 << 18

// affinity returns for how many seconds clients keep their endpoint (N2.41).
func affinity(s *corev1.Service) uint32 {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if a := s.Spec.SessionAffinityConfig; a != nil && a.ClientIP != nil && a.ClientIP.TimeoutSeconds != nil &&
		*a.ClientIP.TimeoutSeconds > 0 {
		return uint32(min(*a.ClientIP.TimeoutSeconds, 86400))
	}
	return uint32(corev1.DefaultClientIPServiceAffinitySeconds)
}

// address is an external address of a Service, with the sources that may use it.
type address struct {
	addr    netip.Addr
	rank    rank
	guarded bool
	sources []netip.Prefix
}

// entries is how many entries of the tables a port of the Service has for external addresses.
func entries(external []address) int {
	n := 2 // of the cluster IP and the node port
	for _, a := range external {
		n += 1 + len(a.sources)
	}
	return n
}

// externals returns the external addresses of a family (N2.29, N2.30).
func externals(f family, n Node, s *corev1.Service) []address {
	var out []address
	seen := map[netip.Addr]bool{}
	add := func(text string, r rank) {
		a, ok := parse(text)
		if ok && f.is(a) && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !seen[a] {
			seen[a], out = true, append(out, address{addr: a, rank: r})
		}
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP) {
			add(in.IP, rankBalancer)
		}
	}
	balancers := out
	for _, text := range s.Spec.ExternalIPs {
		add(text, rankExternal)
	}
	if len(balancers) > 0 {
		guarded, sources := allowed(f, n, s, balancers)
		for i := range balancers {
			out[i].guarded, out[i].sources = guarded, sources
		}
	}
	return out
}

// port adds a Service port whose cluster IP and port are at.
func (c *compiled) port(f family, n Node, s *corev1.Service, p *corev1.ServicePort, at Port, external []address,
	all []endpoint) {
	u := choose(n, all)
	target := func(local bool) route {
		l, list := List{at, local}, u.cluster
		if local {
			list = u.local
		}
		if len(list) == 0 {
			return route{}
		}
		if len(list) > MaxEndpoints {
			c.problems = append(c.problems,
				fmt.Sprintf("%s has %d endpoints, of which %d are used", at, len(list), MaxEndpoints))
			list = list[:MaxEndpoints]
		}
		c.lists[l] = list
		return route{l, Class{uint32(len(list)), c.timeout}}
	}
	insideLocal := s.Spec.InternalTrafficPolicy != nil &&
		*s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	outsideLocal := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal

	inner := vip{rank: rankCluster, dispatch: target(insideLocal)}
	if inner.dispatch.N == 0 {
		inner.verdict = without(u)
		if u.any {
			c.noLocalIn++
		}
	}
	c.vips[at] = inner

	outer := map[Port]vip{}
	for _, a := range external {
		outer[Port{a.addr, at.Proto, at.Port}] = vip{rank: a.rank, guarded: a.guarded, sources: a.sources}
	}
	if p.NodePort > 0 && p.NodePort <= 65535 {
		outer[Port{f.unspecified(), at.Proto, uint16(p.NodePort)}] = vip{rank: rankNodePort}
	}
	// any order: each port by itself
	for at, v := range outer {
		if n.owns(at) {
			c.problems = append(c.problems, "carob itself listens at "+at.String()+": this Service is not served there")
			continue
		}
		v.dispatch, v.masquerade = target(outsideLocal), !outsideLocal && u.any
		if outsideLocal {
			v.inside = target(false)
		}
		if v.dispatch.N == 0 {
			v.verdict = without(u)
		}
		if _, have := c.vips[at]; !have {
			c.vips[at] = v
		}
	}
	if len(outer) > 0 && outsideLocal && u.any && len(u.local) == 0 {
		c.noLocalOut++
	}
	if at.Proto != SCTP {
		c.serving(at, outer, all)
	}
}

// serving records the valid endpoints of UDP and TCP flows (N2.49).
func (c *compiled) serving(at Port, outer map[Port]vip, all []endpoint) {
	var list []netip.AddrPort
	for i := range all {
		if all[i].serving || all[i].ready {
			list = append(list, all[i].at)
		}
	}
	if c.flows == nil {
		c.flows = map[Port][]netip.AddrPort{}
	}
	c.flows[at] = list
	// any order: each port by itself
	for o := range outer {
		if _, have := c.flows[o]; !have {
			c.flows[o] = list
		}
	}
}

// without returns the verdict for connections without an endpoint (N2.11, N2.14).
func without(u usable) verdict {
	if u.any {
		return drop
	}
	return reject
}

// owns reports whether carob itself listens at an address and port.
func (n Node) owns(at Port) bool {
	var all []netip.AddrPort
	switch at.Proto {
	case TCP:
		all = n.Own
	case UDP:
		all = n.OwnUDP
	case SCTP: // carob has no such socket
	}
	return slices.ContainsFunc(all, func(own netip.AddrPort) bool {
		if own.Port() != at.Port {
			return false
		}
		return own.Addr() == at.Addr || at.Addr.IsUnspecified() ||
			own.Addr().IsUnspecified() && slices.Contains(n.Addresses, at.Addr)
	})
}

// allowed returns the sources that may use a load balancer's addresses (N2.36, N2.37); not guarded:
// all.
func allowed(f family, n Node, s *corev1.Service, balancers []address) (guarded bool, out []netip.Prefix) {
	node := false
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		p, ok := parsePrefix(text)
		if !ok || !f.is(p.Addr()) {
			continue
		}
		if p.Bits() == 0 {
			return false, nil
		}
		out = append(out, p)
		node = node || slices.ContainsFunc(n.Addresses, p.Contains)
	}
	if len(out) == 0 {
		return false, nil
	}
	if node {
		for _, a := range balancers {
			out = append(out, netip.PrefixFrom(a.addr, a.addr.BitLen()))
		}
	}
	// Ranges within others are dropped, because the kernel does not accept overlapping ranges. In this order, a range
	// comes directly behind the one that contains it, or behind others that do not overlap with it.
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	kept := out[:0]
	for _, p := range out {
		if n := len(kept); n == 0 || !kept[n-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return true, kept
}
