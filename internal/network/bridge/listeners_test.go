package bridge

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/base/errkind"
	"carob/internal/base/netns"
	"carob/internal/network"
)

func TestListenerMatches(t *testing.T) {
	for _, tt := range []struct {
		listener, hostIP string
		want             bool
	}{
		{"0.0.0.0", "", true}, {"127.0.0.1", "", true}, {"::", "", true}, {"::1", "", true},
		{"127.0.0.1", "0.0.0.0", true}, {"::1", "0.0.0.0", false}, {"::", "0.0.0.0", true},
		{"192.0.2.1", "192.0.2.1", true}, {"192.0.2.2", "192.0.2.1", false}, {"127.0.0.1", "192.0.2.1", false},
		{"0.0.0.0", "192.0.2.1", true}, {"::", "192.0.2.1", true}, {"::", "2001:db8::1", true},
		{"0.0.0.0", "2001:db8::1", false},
		{"2001:db8::2", "::", true}, {"127.0.0.1", "::", false}, {"0.0.0.0", "::", false}, {"::", "::", true},
	} {
		var hostIP netip.Addr
		if tt.hostIP != "" {
			hostIP = netip.MustParseAddr(tt.hostIP)
		}
		if got := (listener{addr: netip.MustParseAddr(tt.listener)}).takes(hostIP); got != tt.want {
			t.Errorf("listener %s, hostIP %q: %v", tt.listener, tt.hostIP, got)
		}
	}
	only := listener{addr: netip.IPv6Unspecified(), only: true}
	for hostIP, want := range map[string]bool{"0.0.0.0": false, "192.0.2.1": false, "::": true, "2001:db8::1": true} {
		if got := only.takes(netip.MustParseAddr(hostIP)); got != want {
			t.Errorf("a listener of IPv6 only, hostIP %s: %v", hostIP, got)
		}
	}
}

// All listeners of a protocol are listed once for all host ports of a pod, and only those of the port if it is one.
func TestListenersOnce(t *testing.T) {
	port := func() uint16 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return uint16(l.Addr().(*net.TCPAddr).Port)
	}
	a, b := port(), port()
	for _, wanted := range []int{1, 2} {
		list := listening{ports: map[uint8]int{unix.IPPROTO_TCP: wanted}, all: map[uint8]map[uint16][]listener{}}
		if got, err := list.on(unix.IPPROTO_TCP, a); err != nil || len(got) != 1 {
			t.Errorf("%d ports: %v, %v, want one listener", wanted, got, err)
		}
		if got := len(list.all[unix.IPPROTO_TCP][b]); got != wanted-1 {
			t.Errorf("%d ports: %d listeners of the other port were listed", wanted, got)
		}
	}
}

// FuzzListener parses arbitrary answers of a kernel.
func FuzzListener(f *testing.F) {
	f.Add(make([]byte, diagMessageLen))
	f.Add([]byte{2, 10, 0})
	f.Fuzz(func(t *testing.T, msg []byte) {
		if l, _ := parseListener(msg); l.addr.IsValid() && len(msg) < diagMessageLen {
			t.Errorf("%x is %s", msg, l.addr)
		}
	})
}

// A pod gets no host port on which a process listens, even on the loopback address only. Connected
// sockets and sockets in other namespaces are not listeners.
func TestHostPortOfTheHost(t *testing.T) {
	cfg := testConfig(t)
	n := open(t, cfg)
	listen := func(network, addr string) (uint16, func()) {
		if strings.HasPrefix(network, "udp") {
			c, err := net.ListenPacket(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return uint16(c.LocalAddr().(*net.UDPAddr).Port), func() { _ = c.Close() }
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return uint16(l.Addr().(*net.TCPAddr).Port), func() { _ = l.Close() }
	}
	serial := 0
	attach := func(ports ...network.PortMapping) error {
		serial++
		id := fmt.Sprint("s", serial)
		_, err := n.Attach(t.Context(),
			network.Pod{UID: id, Namespace: "default", Name: "web", SandboxID: id, Ports: ports})
		if err == nil {
			err = n.Detach(t.Context(), id)
		}
		return err
	}
	for _, tt := range []struct{ network, addr, proto string }{
		{"tcp4", "127.0.0.1:0", "TCP"}, {"tcp4", "0.0.0.0:0", "tcp"}, {"tcp", "[::]:0", "TCP"},
		{"tcp6", "[::1]:0", "TCP"},
		{"udp4", "127.0.0.1:0", "UDP"}, {"udp", "[::]:0", "UDP"},
	} {
		if strings.Contains(tt.addr, "::") {
			if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
				continue
			}
		}
		port, stop := listen(tt.network, tt.addr)
		want := network.PortMapping{Protocol: tt.proto, ContainerPort: 80, HostPort: port}
		err := attach(want)
		if !errkind.Is(err, errkind.InUse) ||
			!strings.Contains(err.Error(),
				fmt.Sprintf("host port %d/%s is taken: a process of the host listens on ", port,
					strings.ToLower(tt.proto))) {
			t.Errorf("%s %s: %v", tt.network, tt.addr, err)
		}
		other := want
		if other.Protocol = "UDP"; tt.proto == "UDP" {
			other.Protocol = "TCP"
		}
		if err := attach(other); err != nil {
			t.Errorf("%s %s: the other protocol: %v", tt.network, tt.addr, err)
		}
		stop()
		if err := attach(want); err != nil {
			t.Errorf("%s %s: nobody listens any more: %v", tt.network, tt.addr, err)
		}
	}
	// Another address of the host is free.
	port, _ := listen("tcp4", "127.0.0.1:0")
	if err := attach(network.PortMapping{Protocol: "TCP", ContainerPort: 80, HostPort: port,
		HostIP: n.v4.gateway()}); err != nil {
		t.Errorf("port of another address: %v", err)
	}
	// A socket of IPv6 only takes no packets of IPv4.
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		port, _ := listen("tcp6", "[::]:0")
		only := network.PortMapping{Protocol: "TCP", ContainerPort: 80, HostPort: port, HostIP: netip.IPv4Unspecified()}
		if err := attach(only); err != nil {
			t.Errorf("IPv4 beside a listener of IPv6 only: %v", err)
		}
		if only.HostIP = netip.IPv6Unspecified(); !errkind.Is(attach(only), errkind.InUse) {
			t.Error("IPv6 beside a listener of IPv6 only was attached")
		}
	}
	// The port of a client connection has no listener.
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := attach(network.PortMapping{Protocol: "TCP", ContainerPort: 80,
		HostPort: uint16(client.LocalAddr().(*net.TCPAddr).Port)}); err != nil {
		t.Errorf("port of a connection: %v", err)
	}
}

// If carob listens on a pod's host port after a restart, traffic to that port reaches carob.
func TestOwnPortsAreKept(t *testing.T) {
	inOwnNamespace(t, func(t *testing.T) {
		cfg := testConfig(t)
		n := open(t, cfg)
		at, err := n.Attach(t.Context(), network.Pod{UID: "u", Namespace: "default", Name: "thief", SandboxID: "s",
			Ports: []network.PortMapping{{Protocol: "TCP", ContainerPort: 80, HostPort: 6443},
				{Protocol: "TCP", ContainerPort: 80, HostPort: 6444}}})
		if err != nil {
			t.Fatal(err)
		}
		serve := func(ns, addr, text string) {
			var l net.Listener
			if err := netns.Do(ns, func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = c.Write([]byte(text))
					_ = c.Close()
				}
			}()
		}
		read := func(addr string) string {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				return err.Error()
			}
			defer c.Close()
			buf := make([]byte, 100)
			k, _ := c.Read(buf)
			return string(buf[:k])
		}
		serve(at.NetNS, ":80", "thief")
		if got := read("127.0.0.1:6443"); got != "thief" {
			t.Fatalf("the host port answers %q", got)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		cfg.OwnPorts = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:6443"),
			netip.MustParseAddrPort("0.0.0.0:6444")}
		open(t, cfg)
		serve("/proc/thread-self/ns/net", "0.0.0.0:6443", "carob")
		serve("/proc/thread-self/ns/net", "0.0.0.0:6444", "carob")
		for addr, want := range map[string]string{
			"127.0.0.1:6443": "carob", "192.0.2.2:6443": "thief", "127.0.0.1:6444": "carob", "192.0.2.2:6444": "carob",
		} {
			if got := read(addr); got != want {
				t.Errorf("%s answers %q, want %q", addr, got, want)
			}
		}
	})
}

// Addresses from a pod's spec reach the rules in one canonical form, or are rejected.
func TestHostileHostIPs(t *testing.T) {
	ports := []network.PortMapping{{Protocol: "TCP", ContainerPort: 80, HostPort: 80,
		HostIP: netip.MustParseAddr("::ffff:127.0.0.1")}}
	if err := checkPorts(ports); err != nil || ports[0].HostIP != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("%v, %v", ports[0].HostIP, err)
	}
	ports[0].HostIP = netip.MustParseAddr("fe80::1%eth0")
	if err := checkPorts(ports); !errkind.Is(err, errkind.Invalid) {
		t.Errorf("an address with a zone: %v", err)
	}
}
