package gatewayplan

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/httproute"
)

func rawListener(name string, protocol gatewayv1.ProtocolType, port int32) gatewayv1.Listener {
	return gatewayv1.Listener{Name: gatewayv1.SectionName(name), Port: port, Protocol: protocol}
}

func streamBackend(name, namespace string, port int32) gatewayv1.BackendRef {
	ref := backendOf(name, namespace).BackendRef
	ref.Port = &port
	return ref
}

func tcpRouteOf(namespace, name string, age int, parents []gatewayv1.ParentReference,
	backends ...gatewayv1.BackendRef) *gatewayv1.TCPRoute {
	r := &gatewayv1.TCPRoute{ObjectMeta: meta(namespace, name, age)}
	r.Spec.ParentRefs, r.Spec.Rules = parents, []gatewayv1.TCPRouteRule{{BackendRefs: backends}}
	return r
}

func udpRouteOf(namespace, name string, age int, parents []gatewayv1.ParentReference,
	backends ...gatewayv1.BackendRef) *gatewayv1.UDPRoute {
	r := &gatewayv1.UDPRoute{ObjectMeta: meta(namespace, name, age)}
	r.Spec.ParentRefs, r.Spec.Rules = parents, []gatewayv1.UDPRouteRule{{BackendRefs: backends}}
	return r
}

// withDNS adds a Service that has port 53 twice.
func withDNS(w *World) *World {
	w.Services[Name{Namespace: "a", Name: "dns"}] = &corev1.Service{ObjectMeta: meta("a", "dns", 0),
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP},
			{Name: "tcp", Port: 53, Protocol: corev1.ProtocolTCP}}}}
	return w
}

// TCP and UDP listeners with one port number have different ports. Two raw listeners of one port conflict.
func TestRawListeners(t *testing.T) {
	const valid = "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs Conflicted=False/NoConflicts Programmed=True/Programmed"
	const conflict = "Accepted=False/ProtocolConflict ResolvedRefs=True/ResolvedRefs " +
		"Conflicted=True/ProtocolConflict Programmed=False/Invalid"
	tcp, udp := rawListener("t", gatewayv1.TCPProtocolType, 80), rawListener("u", gatewayv1.UDPProtocolType, 80)
	named := rawListener("n", gatewayv1.TCPProtocolType, 80)
	named.Hostname = new(gatewayv1.Hostname("h.example"))
	pass := rawListener("p", gatewayv1.TLSProtocolType, 80)
	pass.TLS = &gatewayv1.ListenerTLSConfig{Mode: new(gatewayv1.TLSModePassthrough)}
	for what, c := range map[string]struct {
		listeners []gatewayv1.Listener
		want      []string
	}{
		"TCP":             {[]gatewayv1.Listener{tcp}, []string{valid}},
		"TCP and UDP":     {[]gatewayv1.Listener{tcp, udp}, []string{valid, valid}},
		"UDP and HTTP":    {[]gatewayv1.Listener{plain("x", 80, ""), udp}, []string{valid, valid}},
		"TCP and HTTP":    {[]gatewayv1.Listener{plain("x", 80, "h.example"), tcp}, []string{conflict, conflict}},
		"TCP and TLS":     {[]gatewayv1.Listener{tcp, pass}, []string{conflict, conflict}},
		"TCP twice":       {[]gatewayv1.Listener{tcp, named}, []string{conflict, conflict}},
		"a UDP port more": {[]gatewayv1.Listener{udp, rawListener("v", udp.Protocol, 81)}, []string{valid, valid}},
	} {
		w := world()
		w.Gateways = []*gatewayv1.Gateway{gatewayOf("g", 0, c.listeners...)}
		p := makePlan(w).Plan
		for i, want := range c.want {
			s := p.Gateways[Name{Namespace: "a", Name: "g"}].Listeners[i]
			if got := textOf(s.Conditions); got != want {
				t.Errorf("%s: listener %d: %s, want %s", what, i, got, want)
			}
			kind := map[gatewayv1.ProtocolType]gatewayv1.Kind{gatewayv1.TCPProtocolType: "TCPRoute",
				gatewayv1.UDPProtocolType: "UDPRoute"}[c.listeners[i].Protocol]
			if kind != "" && (len(s.SupportedKinds) != 1 || s.SupportedKinds[0].Kind != kind) {
				t.Errorf("%s: kinds %v", what, s.SupportedKinds)
			}
		}
	}
}

// Of two Gateways that share an address, the older gets a raw port, also in a ListenerSet; a port that cannot be
// opened is reported for its protocol.
func TestRawPortsAreShared(t *testing.T) {
	w := world()
	w.Pool = nil
	tcp, udp := rawListener("t", gatewayv1.TCPProtocolType, 53), rawListener("u", gatewayv1.UDPProtocolType, 53)
	w.Gateways = []*gatewayv1.Gateway{gatewayOf("young", 0, tcp, udp), allowSets(gatewayOf("old", 1, tcp),
		gatewayv1.NamespacesFromAll)}
	w.ListenerSets = []*gatewayv1.ListenerSet{setOf("a", "s", 0, "old", rawListener("x", gatewayv1.TCPProtocolType, 53),
		rawListener("y", gatewayv1.TCPProtocolType, 54))}
	at := netip.MustParseAddrPort("10.0.0.1:53")
	w.FailedUDP = map[netip.AddrPort]string{at: "somebody else has it"}
	p := makePlan(w).Plan
	state := func(of string, i int) string {
		return textOf(p.Gateways[Name{Namespace: "a", Name: of}].Listeners[i].Conditions[:1])
	}
	if got := state("old", 0); got != "Accepted=True/Accepted" {
		t.Errorf("the older Gateway: %s", got)
	}
	if got := state("young", 0); got != "Accepted=False/PortUnavailable" {
		t.Errorf("the younger Gateway: %s", got)
	}
	got := textOf(p.Gateways[Name{Namespace: "a", Name: "young"}].Listeners[1].Conditions)
	if got != "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs Conflicted=False/NoConflicts Programmed=False/Pending" {
		t.Errorf("UDP: %s", got)
	}
	set := p.ListenerSets[Name{Namespace: "a", Name: "s"}].Listeners
	if textOf(set[0].Conditions[:1]) != "Accepted=False/ProtocolConflict" || textOf(set[1].Conditions[:1]) !=
		"Accepted=True/Accepted" {
		t.Errorf("the ListenerSet: %+v", set)
	}
	if len(p.Ports) != 2 || len(p.UDP) != 1 || !p.Ports[at].Raw || !p.UDP[at].Raw {
		t.Errorf("ports %v, UDP %v", p.Ports, p.UDP)
	}
}

// Routes of TCP and UDP: their listeners and statuses, and which of several routes is served.
func TestRawRoutes(t *testing.T) {
	w := withDNS(world())
	tcp, udp := rawListener("t", gatewayv1.TCPProtocolType, 53), rawListener("u", gatewayv1.UDPProtocolType, 53)
	w.Gateways = []*gatewayv1.Gateway{gatewayOf("g", 0, tcp, udp, rawListener("t2", tcp.Protocol, 54),
		plain("h", 80, ""))}
	all := []gatewayv1.ParentReference{{Name: "g"}}
	section := func(of gatewayv1.SectionName) []gatewayv1.ParentReference {
		return []gatewayv1.ParentReference{{Name: "g", SectionName: &of}}
	}
	other := []gatewayv1.ParentReference{{Name: "g", Port: new(gatewayv1.PortNumber(55))}}
	dns, pool := streamBackend("dns", "", 53), streamBackend("dns", "", 53)
	pool.Group, pool.Kind = new(gatewayv1.Group("inference.networking.k8s.io")), new(gatewayv1.Kind("InferencePool"))
	nobody := streamBackend("web", "b", 80)
	w.TCPRoutes = []*gatewayv1.TCPRoute{tcpRouteOf("a", "younger", 0, all, dns),
		tcpRouteOf("a", "older", 1, section("t"), dns), tcpRouteOf("a", "http", 0, section("h"), dns),
		tcpRouteOf("a", "nowhere", 0, other, dns),
		tcpRouteOf("a", "missing", 0, section("t2"), streamBackend("none", "", 1)),
		tcpRouteOf("a", "pool", 0, section("t2"), pool), tcpRouteOf("a", "secret", 0, section("t2"), nobody),
		tcpRouteOf("b", "space", 0, []gatewayv1.ParentReference{{Namespace: new(gatewayv1.Namespace("a")),
			Name: "g"}}, dns)}
	w.UDPRoutes = []*gatewayv1.UDPRoute{udpRouteOf("a", "udp", 0, all, dns),
		udpRouteOf("a", "http", 0, section("h"), dns),
		udpRouteOf("a", "tcp", 0, section("u"), streamBackend("web", "", 80))}
	p := NewLive(w).Plan
	const ok = "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"
	for of, want := range map[string]string{"younger": ok, "older": ok,
		"http":    "Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs",
		"nowhere": "Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs",
		"missing": "Accepted=True/Accepted ResolvedRefs=False/BackendNotFound",
		"pool":    "Accepted=True/Accepted ResolvedRefs=False/InvalidKind",
		"secret":  "Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted"} {
		s := p.TCPRoutes[Name{Namespace: "a", Name: of}]
		if len(s) != 1 || textOf(s[0].Conditions) != want {
			t.Errorf("TCPRoute %s: %+v, want %s", of, s, want)
		}
	}
	if got := textOf(p.TCPRoutes[Name{Namespace: "b", Name: "space"}][0].Conditions[:1]); got !=
		"Accepted=False/NotAllowedByListeners" {
		t.Errorf("a route of another namespace: %s", got)
	}
	for of, want := range map[string]string{"udp": ok,
		"http": "Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs",
		"tcp":  "Accepted=True/Accepted ResolvedRefs=False/BackendNotFound"} { // the Service has the port for TCP only
		if s := p.UDPRoutes[Name{Namespace: "a", Name: of}]; len(s) != 1 || textOf(s[0].Conditions) != want {
			t.Errorf("UDPRoute %s: %+v, want %s", of, s, want)
		}
	}
	at := netip.MustParseAddrPort("127.0.0.2:53")
	if s := p.Ports[at].Streams; len(s) != 2 || s[0].Source.Name != "older" || s[1].Source.Name != "younger" ||
		s[0].Rule.Backends[0].Ref != (httproute.Ref{Namespace: "a", Name: "dns", Port: 53}) || s[0].Terminate {
		t.Errorf("TCP: %+v", s)
	}
	if s := p.UDP[at].Streams; len(s) != 2 || s[1].Rule.Backends[0].Ref != (httproute.Ref{Namespace: "a", Name: "dns",
		Port: 53, UDP: true}) {
		t.Errorf("UDP: %+v", s)
	}
	attached := map[gatewayv1.SectionName]int32{}
	for _, l := range p.Gateways[Name{Namespace: "a", Name: "g"}].Listeners {
		attached[l.Name] = l.AttachedRoutes
	}
	if attached["t"] != 2 || attached["u"] != 2 || attached["t2"] != 4 || attached["h"] != 0 {
		t.Errorf("attached: %v", attached)
	}
}

// Where carob has the bytes of a connection, a BackendTLSPolicy holds; where it passes TLS through, it does not. With a
// policy that is not valid, no backend is connected to without TLS.
func TestPoliciesOfStreams(t *testing.T) {
	pass, end := rawListener("pass", gatewayv1.TLSProtocolType, 8443), secure("end", "cert", "")
	pass.TLS = &gatewayv1.ListenerTLSConfig{Mode: new(gatewayv1.TLSModePassthrough)}
	end.Protocol = gatewayv1.TLSProtocolType
	for what, problem := range map[string]bool{"a valid policy": false, "a policy that is not valid": true} {
		w := withDNS(world())
		w.Secrets[Name{Namespace: "a", Name: "cert"}] = Material{}
		w.Gateways = []*gatewayv1.Gateway{gatewayOf("through", 0, pass), gatewayOf("g", 1, end,
			rawListener("tcp", gatewayv1.TCPProtocolType, 53), rawListener("udp", gatewayv1.UDPProtocolType, 53))}
		policy := policyOf("a", "p", 0, "dns", "tcp")
		policy.Spec.Validation.WellKnownCACertificates = new(gatewayv1.WellKnownCACertificatesSystem)
		if problem {
			policy.Spec.Validation.WellKnownCACertificates = new(gatewayv1.WellKnownCACertificatesType("other"))
		}
		w.Policies = []*gatewayv1.BackendTLSPolicy{policy}
		dns := streamBackend("dns", "", 53)
		tls := &gatewayv1.TLSRoute{ObjectMeta: meta("a", "r", 0)}
		tls.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "through"}}
		tls.Spec.Hostnames = []gatewayv1.Hostname{"h.example"}
		tls.Spec.Rules = []gatewayv1.TLSRouteRule{{BackendRefs: []gatewayv1.BackendRef{dns}}}
		w.TLSRoutes = []*gatewayv1.TLSRoute{tls}
		if p := NewLive(w).Plan; len(p.Policies[nameOf(policy)]) > 0 {
			t.Errorf("%s: a Gateway that passes TLS through is an ancestor", what)
		}
		parents := []gatewayv1.ParentReference{{Name: "g"}}
		tls.Spec.ParentRefs = append(tls.Spec.ParentRefs, parents...)
		w.TCPRoutes = []*gatewayv1.TCPRoute{tcpRouteOf("a", "r", 0, parents, dns)}
		w.UDPRoutes = []*gatewayv1.UDPRoute{udpRouteOf("a", "r", 0, parents, dns)}
		p := NewLive(w).Plan
		first := func(ports map[netip.AddrPort]*Port, number uint16) *httproute.Backend {
			for at, port := range ports {
				if at.Port() == number && len(port.Streams) == 1 {
					return &port.Streams[0].Rule.Backends[0]
				}
			}
			t.Fatalf("%s: port %d is not served", what, number)
			return nil
		}
		for _, c := range []struct {
			port      uint16
			backend   *httproute.Backend
			encrypted bool
		}{{8443, first(p.Ports, 8443), false}, {443, first(p.Ports, 443), true}, {53, first(p.Ports, 53), true},
			{53, first(p.UDP, 53), false}} {
			if got := c.backend.TLS != nil; got != (c.encrypted && !problem) {
				t.Errorf("%s: port %d: TLS %v", what, c.port, got)
			}
			if got := c.backend.Invalid != ""; got != (c.encrypted && problem) {
				t.Errorf("%s: port %d: %q", what, c.port, c.backend.Invalid)
			}
		}
		if got := p.Policies[nameOf(policy)]; len(got) == 0 {
			t.Errorf("%s: the policy has no ancestor", what)
		}
	}
}
