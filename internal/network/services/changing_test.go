package services

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	core "carob/internal/core/netplan/services"
	"carob/internal/network/nft"
)

// clientIP switches session affinity on.
func clientIP(s *corev1.Service) {
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
		ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(1))}}
}

// A packet on its way through the rules while a list changes uses the chains from before the change and the sets from
// after it. In each such mixture it gets one of the endpoints that are there: nobody is refused (N8.20).
func TestPacketDuringChange(t *testing.T) {
	kinds := map[string][]func(*corev1.Service){"": nil, "affinity": {clientIP}, "local": {policyLocal},
		"local, affinity": {policyLocal, clientIP}}
	families(t, func(t *testing.T, p *testPlane) {
		for name, kind := range kinds {
			change := func(s *corev1.Service) {
				p.nodePort(false)(s)
				for _, f := range kind {
					f(s)
				}
			}
			after := p.service("a", p.ip(1), change, "pod1")
			shorter := p.shorter(p.service("a", p.ip(1), change, "pod1", "pod2", "pod3"), after)
			p.meets(name+": the list is shorter than its class", shorter)
			p.update(after)
			var classes, targets, chains nft.Change
			for _, class := range p.state.Classes() {
				classes.DelElement = append(classes.DelElement, picks(class)...)
				for _, prefix := range []string{"pick", "inside"} {
					chains.SetChains = append(chains.SetChains, nft.Chain{Name: chainOf(prefix, class)})
				}
			}
			for e := range p.state.Elements() {
				if e.Set == core.Dispatch || e.Set == core.Inside {
					targets.DelElement = append(targets.DelElement, p.element(nil, e)[0]) // the other one is the list
				}
			}
			p.meets(name+": the class is no longer in the map", classes)
			p.meets(name+": the chain of the class is still empty", chains)
			p.meets(name+": the target is just being replaced", targets) // kernels before 6.17
			p.update(p.service("a", p.ip(1), change))
		}
	})
}

// shorter is the part of a change that makes a list shorter.
func (p *testPlane) shorter(before, after core.Input) (out nft.Change) {
	p.t.Helper()
	p.update(before)
	state := core.New(p.v6, labNode(p.v6))
	state.Update([]core.Input{before})
	for _, e := range p.change(state.Update([]core.Input{after})).DelElement {
		if e.Set == core.Endpoints.String() || e.Set == core.Slots.String() {
			out.DelElement = append(out.DelElement, e)
		}
	}
	if len(out.DelElement) < 4 { // two of TCP, two of UDP
		p.t.Fatalf("%+v", out)
	}
	return out
}

// meets connects while only a part of a change is in the table, which is complete again afterwards.
func (p *testPlane) meets(what string, part nft.Change) {
	p.t.Helper()
	p.must(p.nft.Apply(part))
	vip := netip.AddrPortFrom(netip.MustParseAddr(p.ip(1)), 80)
	for _, to := range []netip.AddrPort{vip, netip.AddrPortFrom(p.addr("node"), 30080)} {
		for _, from := range []string{"outside", "node", "pod3"} {
			for range 3 {
				if got, _, err := p.reach(from, "tcp", to, patience); err != nil || got != "pod1" {
					p.t.Errorf("%s: %s to %s: %q %v", what, from, to, got, err)
				}
			}
		}
	}
	p.must(p.nft.Sync(p.content(p.state)))
}
