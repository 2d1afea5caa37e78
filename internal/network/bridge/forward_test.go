package bridge

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// Only the traffic that pods need is forwarded to them: a machine beside the host reaches pods only
// through host ports, and pods reach every address.
func TestForwardingIsFiltered(t *testing.T) {
	inOwnNamespace(t, func(t *testing.T) {
		cfg := testConfig(t)
		n := open(t, cfg)
		at, err := n.Attach(t.Context(), network.Pod{UID: "u", Namespace: "default", Name: "web", SandboxID: "s",
			Ports: []network.PortMapping{{Protocol: "UDP", ContainerPort: 80, HostPort: 8080}}})
		if err != nil {
			t.Fatal(err)
		}
		world := newWorld(t, cfg.Pods)

		listen := func(ns, addr string) *net.UDPConn {
			var c net.PacketConn
			if err := netns.Do(ns,
				func() (err error) { c, err = net.ListenPacket("udp4", addr); return err }); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return c.(*net.UDPConn)
		}
		send := func(c *net.UDPConn, text, to string) {
			if _, err := c.WriteToUDPAddrPort([]byte(text), netip.MustParseAddrPort(to)); err != nil {
				t.Fatal(err)
			}
		}
		const past = "past the host"
		// deliver sends a text until it arrives, and returns where it came from: the kernel drops packets of any
		// namespace while the tests beside this one send many.
		deliver := func(c *net.UDPConn, text, to string, at *net.UDPConn) netip.AddrPort {
			t.Helper()
			buf := make([]byte, 100)
			for range 50 {
				send(c, text, to)
				if err := at.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				for {
					k, from, err := at.ReadFromUDPAddrPort(buf)
					if err != nil {
						break
					}
					switch string(buf[:k]) {
					case text:
						return from
					case past:
						t.Fatalf("%q arrived", past)
					}
				}
			}
			t.Fatalf("%q never arrived at %s", text, to)
			return netip.AddrPort{}
		}
		pod, outside := listen(at.NetNS, ":80"), listen(world, ":9000")
		// The packet past the host would arrive first.
		send(outside, past, netip.AddrPortFrom(at.IPs[0], 80).String())
		from := deliver(outside, "by the host port", "192.0.2.2:8080", pod)
		deliver(pod, "answer", from.String(), outside)
		// Answers to the pod's own requests are forwarded.
		client := listen(at.NetNS, ":0")
		from = deliver(client, "question", "192.0.2.1:9000", outside)
		deliver(outside, "answer of the world", from.String(), client)
	})
}

// Pods and the host reach what carob serves at the bridge's address; a neighbour that sets a route
// does not.
func TestGatewayIsForPods(t *testing.T) {
	inOwnNamespace(t, func(t *testing.T) {
		cfg := testConfig(t)
		n := open(t, cfg)
		at, err := n.Attach(t.Context(), network.Pod{UID: "u", Namespace: "default", Name: "web", SandboxID: "s"})
		if err != nil {
			t.Fatal(err)
		}
		world := newWorld(t, cfg.Pods)
		gateway := netip.AddrPortFrom(cfg.Pods.Masked().Addr().Next(), 7000)
		server, err := net.ListenPacket("udp4", gateway.String())
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		from := func(ns, text string) {
			t.Helper()
			send := func() error {
				c, err := net.Dial("udp4", gateway.String())
				if err != nil {
					return err
				}
				defer c.Close()
				_, err = c.Write([]byte(text))
				return err
			}
			if ns != "" {
				send = func(f func() error) func() error { return func() error { return netns.Do(ns, f) } }(send)
			}
			if err := send(); err != nil {
				t.Fatal(err)
			}
		}
		from(world, "attack") // would arrive first
		from(at.NetNS, "pod")
		from("", "host")
		for _, want := range []string{"pod", "host"} {
			if err := server.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 100)
			if k, _, err := server.ReadFrom(buf); err != nil || string(buf[:k]) != want {
				t.Errorf("received %q, %v, want %q", buf[:k], err, want)
			}
		}
	})
}

// newWorld moves the other end of the uplink to its own namespace, with a route to the pods through
// the host.
func newWorld(t *testing.T, pods netip.Prefix) (path string) {
	t.Helper()
	path = t.TempDir() + "/world"
	if err := netns.DoNew(func() error { return netns.Pin(netns.Current, path) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netns.Unpin(path) })
	fd, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	link, err := netlink.LinkByName("world0")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetNsFd(link, int(fd.Fd())); err != nil {
		t.Fatal(err)
	}
	if err := netns.Do(path, func() error {
		link, err := netlink.LinkByName("world0")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("192.0.2.1/24")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(pods),
			Gw: net.IPv4(192, 0, 2, 2)})
	}); err != nil {
		t.Fatal(err)
	}
	return path
}
