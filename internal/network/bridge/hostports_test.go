package bridge

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/errkind"
	"carob/internal/base/netns"
	"carob/internal/base/testwait"
	"carob/internal/network"
)

// Two host ports collide if both can get the same packet (N7.28).
func TestCollide(t *testing.T) {
	port := func(ip, proto string, number uint16) network.PortMapping {
		p := network.PortMapping{Protocol: proto, ContainerPort: 80, HostPort: number}
		if ip != "" {
			p.HostIP = netip.MustParseAddr(ip)
		}
		return p
	}
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"", "", true}, {"", "::1", true}, {"", "127.0.0.1", true}, {"0.0.0.0", "127.0.0.1", true}, {"::", "::1", true},
		{"::", "127.0.0.1", false}, {"0.0.0.0", "::1", false}, {"0.0.0.0", "::", false}, {"::1", "::1", true},
		{"127.0.0.1", "127.0.0.2", false},
	} {
		a, b := port(tt.a, "TCP", 80), port(tt.b, "tcp", 80)
		if collide(a, b) != tt.want || collide(b, a) != tt.want {
			t.Errorf("%q and %q: want %v", tt.a, tt.b, tt.want)
		}
		if collide(a, port(tt.b, "UDP", 80)) || collide(a, port(tt.b, "TCP", 81)) {
			t.Errorf("%q and %q collide with another port", tt.a, tt.b)
		}
	}
}

// A host port that another sandbox has is refused, whichever of several it is; the sandbox's own ports are not.
func TestCheckPortsFree(t *testing.T) {
	port := func(proto string, host uint16) network.PortMapping {
		return network.PortMapping{Protocol: proto, ContainerPort: 80, HostPort: host}
	}
	n := &Network{attached: map[string]*attachment{
		"a": {Sandbox: "a", Pod: "ns/a",
			Ports: []network.PortMapping{port("TCP", 0), port("TCP", 80), port("UDP", 53)}},
		"b": {Sandbox: "b", Pod: "ns/b", Ports: []network.PortMapping{port("TCP", 81)}},
	}}
	for _, tt := range []struct {
		sandbox string
		ports   []network.PortMapping
		want    string
	}{
		{"c", nil, ""},
		{"c", []network.PortMapping{port("tcp", 0), port("udp", 80), port("tcp", 53)}, ""},
		{"c", []network.PortMapping{port("tcp", 82), port("tcp", 81)}, "host port 81/tcp is taken by pod ns/b"},
		{"c", []network.PortMapping{port("tcp", 53), port("udp", 53)}, "host port 53/udp is taken by pod ns/a"},
		{"a", []network.PortMapping{port("tcp", 80)}, ""},
		{"b", []network.PortMapping{port("tcp", 80)}, "host port 80/tcp is taken by pod ns/a"},
	} {
		err := n.checkPortsFree(network.Pod{SandboxID: tt.sandbox, Ports: tt.ports})
		if (err == nil) != (tt.want == "") ||
			err != nil && (err.Error() != tt.want || errkind.Of(err) != errkind.InUse) {
			t.Errorf("%s, %v: %v, want %q", tt.sandbox, tt.ports, err, tt.want)
		}
	}
}

// TestRepeatedHostPort: of two mappings of one host port of a pod the first counts. The rules can't hold both.
func TestRepeatedHostPort(t *testing.T) {
	pod4, pod6 := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2")
	local := netip.MustParseAddr("127.0.0.1")
	at := &attachment{IPs: []netip.Addr{pod4, pod6}, Ports: []network.PortMapping{
		{Protocol: "TCP", ContainerPort: 80, HostPort: 8080},
		{Protocol: "tcp", ContainerPort: 81, HostPort: 8080, HostIP: netip.IPv4Unspecified()},
		{Protocol: "TCP", ContainerPort: 82, HostPort: 8080, HostIP: local},
		{Protocol: "TCP", ContainerPort: 83, HostPort: 8080, HostIP: local},
		{Protocol: "UDP", ContainerPort: 84, HostPort: 8080},
		{Protocol: "TCP", ContainerPort: 85, HostPort: 8080, HostIP: netip.IPv6Unspecified()},
	}}
	want := []publication{
		{proto: unix.IPPROTO_TCP, hostPort: 8080, pod: pod4, podPort: 80},
		{proto: unix.IPPROTO_TCP, hostPort: 8080, pod: pod6, podPort: 80},
		{proto: unix.IPPROTO_TCP, hostIP: local, hostPort: 8080, pod: pod4, podPort: 82},
		{proto: unix.IPPROTO_UDP, hostPort: 8080, pod: pod4, podPort: 84},
		{proto: unix.IPPROTO_UDP, hostPort: 8080, pod: pod6, podPort: 84},
	}
	if got := at.published(); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Each address family of a host port has its own pods (N7.28, N7.30): those of IPv6 answer on the node's addresses, but
// a client at ::1 is refused at once, so that one of "localhost" goes on with 127.0.0.1.
func TestHostPortFamilies(t *testing.T) {
	inOwnNamespace(t, func(t *testing.T) {
		cfg := testConfig(t)
		cfg.Pods6 = netip.MustParsePrefix("fd00:212:1::/64")
		n := open(t, cfg)
		for _, p := range []struct {
			name   string
			hostIP netip.Addr
			port   uint16
		}{
			{"all", netip.Addr{}, 8080}, {"four", netip.IPv4Unspecified(), 8081},
			{"six", netip.IPv6Unspecified(), 8081},
			{"loopback", netip.MustParseAddr("127.0.0.1"), 8082},
			{"six-too", netip.IPv6Unspecified(), 8082},
			{"one", netip.MustParseAddr("::1"), 8083},
		} {
			pod := podOf(p.name)
			pod.Ports = []network.PortMapping{
				{Protocol: "TCP", ContainerPort: 80, HostPort: p.port, HostIP: p.hostIP},
				{Protocol: "UDP", ContainerPort: 80, HostPort: p.port, HostIP: p.hostIP}}
			at, err := n.Attach(t.Context(), pod)
			if err != nil {
				t.Fatal(err)
			}
			serveName(t, at.NetNS, p.name)
		}
		late := podOf("late")
		late.Ports = []network.PortMapping{{Protocol: "TCP", ContainerPort: 80, HostPort: 8083,
			HostIP: netip.IPv6Unspecified()}}
		if _, err := n.Attach(t.Context(), late); !errkind.Is(err, errkind.InUse) {
			t.Errorf("a port of all addresses beside one of them: %v", err)
		}
		own := hostIPv6(t)
		for _, tt := range []struct{ from, to, want string }{
			{"", "127.0.0.1:8080", "all"}, {"", "192.0.2.2:8080", "all"}, {"", own + ":8080", "all"},
			{"", "127.0.0.1:8081", "four"}, {"", own + ":8081", "six"},
			{"", "127.0.0.1:8082", "loopback"}, {"", own + ":8082", "six-too"}, {"", "192.0.2.2:8082", "refused"},
			{"", "[::1]:8080", "refused"}, {"", "[::1]:8081", "refused"}, {"", "[::1]:8083", "refused"},
			// As upstream's test of conformance: a client at an address of the node (N7.29).
			{own, "[::1]:8080", "all"}, {own, "[::1]:8083", "one"}, {own, own + ":8083", "refused"},
		} {
			for _, proto := range []string{"tcp", "udp"} {
				if got := nameAt(proto, tt.from, tt.to); got != tt.want {
					t.Errorf("%s from %q to %s: %s, want %s", proto, tt.from, tt.to, got, tt.want)
				}
			}
		}
	})
}

// hostIPv6 gives the host an address of IPv6, in brackets.
func hostIPv6(t *testing.T) string {
	t.Helper()
	link, err := netlink.LinkByName("uplink0")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr("2001:db8::2/64")
	if err != nil {
		t.Fatal(err)
	}
	if addr.Flags = unix.IFA_F_NODAD; netlink.AddrAdd(link, addr) != nil {
		t.Fatal("the host has no IPv6")
	}
	testwait.For(t, "the local route, which the kernel adds later", func() bool {
		routes, err := netlink.RouteGet(addr.IP)
		return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
	})
	return "[2001:db8::2]"
}

// serveName serves a name in a namespace, at port 80 of TCP and UDP, until the test ends.
func serveName(t *testing.T, ns, name string) {
	t.Helper()
	var l net.Listener
	var c net.PacketConn
	if err := netns.Do(ns, func() error {
		var tcp, udp error
		l, tcp = net.Listen("tcp", ":80")
		c, udp = net.ListenPacket("udp", ":80")
		return errors.Join(tcp, udp)
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = l.Close(), c.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name)
			_ = conn.Close()
		}
	}()
	go func() {
		for {
			_, from, err := c.ReadFrom(make([]byte, 1))
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(name), from)
		}
	}()
}

// nameAt is the name that is served at an address, "refused", or an error.
func nameAt(proto, from, to string) string {
	d := net.Dialer{Timeout: 20 * time.Second}
	switch local := net.ParseIP(strings.Trim(from, "[]")); {
	case local != nil && proto == "tcp":
		d.LocalAddr = &net.TCPAddr{IP: local}
	case local != nil:
		d.LocalAddr = &net.UDPAddr{IP: local}
	}
	c, err := d.Dial(proto, to)
	var n int
	buf := make([]byte, 20)
	if err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if proto == "udp" {
			_, err = c.Write([]byte{1})
		}
		if err == nil {
			n, err = c.Read(buf)
		}
	}
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case err != nil:
		return fmt.Sprint(err)
	}
	return string(slices.Clone(buf[:n]))
}
