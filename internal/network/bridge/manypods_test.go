package bridge

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/network"
)

// The tables of a node with many pods, each with many host ports, can be made again: the kernel queues a reply for each
// message of the transaction. One pod may publish as many, too.
func TestRulesOfManyPods(t *testing.T) {
	cfg := testConfig(t)
	n := open(t, cfg)
	var pins []pin
	var published []publication
	for i := range 2000 {
		ip := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		pins = append(pins, pin{port: 1000 + i, mac: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)},
			ips: []netip.Addr{ip}})
		for j := range 3 {
			published = append(published, publication{
				proto: unix.IPPROTO_TCP, hostPort: uint16(20000 + 3*i + j), pod: ip, podPort: 80})
		}
	}
	if err := n.rules.install(published, pins); err != nil {
		t.Fatal(err)
	}
	if err := n.installRules(); err != nil {
		t.Fatal(err)
	}
	var ports []network.PortMapping
	for i := range 200 {
		ports = append(ports, network.PortMapping{Protocol: "udp", HostPort: uint16(20000 + i), ContainerPort: 80,
			HostIP: netip.MustParseAddr("198.18.255.1")})
	}
	pod := network.Pod{SandboxID: "a", Name: "a", UID: "a", Ports: ports}
	if _, err := n.Attach(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = open(t, cfg)
	if err := n.Detach(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}
