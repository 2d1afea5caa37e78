package bridge

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// After `conntrack -F`, connections of a pod to the outside, and from there to its host port, are translated as before
// when the client sends next.
func TestTrackingIsFlushed(t *testing.T) {
	inOwnNamespace(t, func(t *testing.T) {
		cfg := testConfig(t)
		n := open(t, cfg)
		at, err := n.Attach(t.Context(), network.Pod{UID: "u", Namespace: "default", Name: "web", SandboxID: "s",
			Ports: []network.PortMapping{{Protocol: "TCP", ContainerPort: 80, HostPort: 8080}}})
		if err != nil {
			t.Fatal(err)
		}
		world := newWorld(t, cfg.Pods)
		var conns []net.Conn
		for _, c := range []struct{ server, listen, client, to string }{
			{world, ":9000", at.NetNS, "192.0.2.1:9000"},
			{at.NetNS, ":80", world, "192.0.2.2:8080"},
		} {
			echoes(t, c.server, c.listen)
			for range 5 {
				if err := netns.Do(c.client, func() error {
					conn, err := net.DialTimeout("tcp4", c.to, 30*time.Second)
					if err == nil {
						conns = append(conns, conn)
					}
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, c := range conns {
			defer c.Close()
		}
		for range 3 {
			for _, c := range conns {
				echo(t, c)
			}
			if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range conns {
			echo(t, c)
		}
	})
}

// echoes serves connections in a namespace until the test ends.
func echoes(t *testing.T, ns, addr string) {
	t.Helper()
	var l net.Listener
	if err := netns.Do(ns, func() (err error) { l, err = net.Listen("tcp4", addr); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// echo sends a byte and reads it again; nothing is left to be acknowledged, which would be sent after the flush.
func echo(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte{1}); err != nil {
		t.Errorf("%s: %v", at(c), err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("%s: %v", at(c), err)
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	}); err != nil {
		t.Fatal(err)
	}
}

func at(c net.Conn) netip.AddrPort { return netip.MustParseAddrPort(c.RemoteAddr().String()) }
