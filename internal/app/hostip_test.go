package app

import (
	"net/netip"
	"slices"
	"testing"

	"carob/internal/base/instance"
)

// When the machine changes its network, its addresses change; when it loses all, it keeps the
// previous ones; listeners get each change once.
func TestMachineFollowsItsAddresses(t *testing.T) {
	addrs := func(list ...string) (out []netip.Addr) {
		for _, s := range list {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	var now []netip.Addr
	var reported [][]netip.Addr
	in, err := instance.Derive(instance.Flags{PodCIDR: "10.88.0.0/16"}, "h")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{in: in, find: func() []netip.Addr { return now },
		change: func(ips []netip.Addr) { reported = append(reported, ips) }}
	m.update()
	if got := m.hostIPs(); !slices.Equal(got, addrs("10.88.0.1")) {
		t.Errorf("without a network: %v", got)
	}
	for _, step := range []struct{ found, want []netip.Addr }{
		{addrs("192.0.2.7", "192.0.2.8", "2001:db8::7"), addrs("192.0.2.7", "2001:db8::7")},
		{addrs("192.0.2.7", "2001:db8::7"), addrs("192.0.2.7", "2001:db8::7")},
		{nil, addrs("192.0.2.7", "2001:db8::7")},
		{addrs("198.51.100.3"), addrs("198.51.100.3")},
		{addrs("198.51.100.3", "198.51.100.4"), addrs("198.51.100.3")},
	} {
		now = step.found
		m.update()
		if got := m.hostIPs(); !slices.Equal(got, step.want) {
			t.Errorf("with %v: %v, want %v", step.found, got, step.want)
		}
	}
	if len(reported) != 2 {
		t.Errorf("notified of %v", reported)
	}
}
