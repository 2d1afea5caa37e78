package app

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"carob/internal/base/instance"
)

// A pool that cannot work is refused before anything starts.
func TestBalancerPool(t *testing.T) {
	in := instance.Instance{Pods: netip.MustParsePrefix("10.88.0.0/16"),
		Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}}
	for list, ok := range map[string]bool{"": true, "192.0.2.0/24,2001:db8::/120": true, "10.88.9.0/24": false,
		"10.95.0.0-10.97.0.0": false, "10.95.0.0-10.95.0.9": true, "fd00:96::/120": false, "nonsense": false} {
		in.LoadBalancerPool = list
		p, err := balancerPool(in)
		if (err == nil) != ok || err != nil && !errors.Is(err, instance.ErrFlag) || ok && (p != nil) != (list != "") {
			t.Errorf("%q: %v %v", list, p, err)
		}
	}
	in.LoadBalancerPool, in.ServiceProxy = "192.0.2.0/24", "none"
	if _, err := balancerPool(in); !errors.Is(err, instance.ErrFlag) {
		t.Errorf("without the built-in proxy: %v", err)
	}
}

// No Service takes a port of the DNS, or one of the gateway, also before the gateway opens it with the first object.
func TestOwnPorts(t *testing.T) {
	at := netip.MustParseAddrPort
	in := instance.Instance{ListenAddr: at("127.0.0.1:6443"), AgentListen: at("127.0.0.1:10250")}
	in.Routes.HTTP, in.Routes.HTTPS = at("0.0.0.0:80"), at("0.0.0.0:443")
	in.DNSListen = []netip.Addr{netip.MustParseAddr("10.88.0.1")}
	always := []netip.AddrPort{in.ListenAddr, in.AgentListen, in.Routes.HTTP, in.Routes.HTTPS}
	for _, c := range []struct {
		dns string
		udp []netip.AddrPort
	}{{"none", nil}, {"builtin", []netip.AddrPort{at("10.88.0.1:53")}}} {
		in.DNS = c.dns
		tcp, udp := ownPorts(in)
		if !slices.Equal(tcp, append(slices.Clone(always), c.udp...)) || !slices.Equal(udp, c.udp) {
			t.Errorf("DNS %s: %v, %v", c.dns, tcp, udp)
		}
	}
}
