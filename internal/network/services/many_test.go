package services

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	core "carob/internal/core/netplan/services"
)

// Ten thousand endpoints behind one Service are all in the kernel, one that leaves changes a few elements of the table,
// and other Services are reached meanwhile.
func TestManyEndpoints(t *testing.T) {
	p := newPlane(t, false)
	const many = 10_000
	big := p.service("big", p.ip(1), onlyTCP, "pod1")
	one := big.Slices[0].Endpoints[0]
	for i := range many - 1 {
		if i%100 == 0 {
			big.Slices = append(big.Slices, &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
				Ports: big.Slices[0].Ports})
		}
		at := one
		at.Addresses, at.TargetRef = []string{fmt.Sprintf("10.99.%d.%d", i/200, 1+i%200)}, nil
		last := big.Slices[len(big.Slices)-1]
		last.Endpoints = append(last.Endpoints, at)
	}
	p.update(big, p.service("other", p.ip(2), nil, "pod2"))
	if have := p.kernelElements()[core.Endpoints.String()]; have != many+2 {
		t.Errorf("the kernel has %d endpoints, want %d", have, many+2)
	}
	other := netip.AddrPortFrom(netip.MustParseAddr(p.ip(2)), 80)
	if name, _, err := p.reach("pod3", "tcp", other, patience); err != nil || name != "pod2" {
		t.Errorf("the other Service: %s, %v", name, err)
	}
	fewer := big
	fewer.Slices = slices.Clone(big.Slices)
	shorter := fewer.Slices[50].DeepCopy()
	shorter.Endpoints = shorter.Endpoints[1:]
	fewer.Slices[50] = shorter
	c := p.state.Update([]core.Input{fewer})
	if n := len(c.Add) + len(c.Delete); n > 20 {
		t.Errorf("one endpoint less changes %d elements", n)
	}
	if !p.table.Apply(c) {
		t.Fatal("the interpreter refuses the change")
	}
	p.must(p.nft.Apply(p.change(c)))
	if have := p.kernelElements()[core.Endpoints.String()]; have != many+1 {
		t.Errorf("the kernel has %d endpoints, want %d", have, many+1)
	}
	// Only one is left: it is reached, whatever the table was before.
	p.update(p.service("big", p.ip(1), onlyTCP, "pod1"))
	vip := netip.AddrPortFrom(netip.MustParseAddr(p.ip(1)), 80)
	if name, _, err := p.reach("pod3", "tcp", vip, patience); err != nil || name != "pod1" {
		t.Errorf("the Service: %s, %v", name, err)
	}
}
