package bridge

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"carob/internal/base/netns"
	"carob/internal/base/testwait"
	"carob/internal/network"
)

// Links that another program deletes or stops are restored, and pods reach each other and are reached by their host
// ports as before. Earlier connections continue.
func TestDeletedLinksAreRestored(t *testing.T) {
	cfg := testConfig(t)
	cfg.Pods6 = netip.MustParsePrefix("fd00:212:7::/64")
	n := open(t, cfg)
	client, err := n.Attach(t.Context(), podOf("client"))
	if err != nil {
		t.Fatal(err)
	}
	pod := podOf("server")
	pod.Ports = []network.PortMapping{{Protocol: "tcp", ContainerPort: 80, HostPort: 18391}}
	server, err := n.Attach(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	var listener net.Listener
	if err := netns.Do(server.NetNS, func() (err error) {
		listener, err = net.Listen("tcp", ":80")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 1)
				for {
					if _, err := c.Read(b); err != nil {
						return
					}
					if _, err := c.Write(b); err != nil {
						return
					}
				}
			}()
		}
	}()
	dial := func(to string) (c net.Conn, err error) {
		return c, netns.Do(client.NetNS, func() (err error) {
			c, err = net.DialTimeout("tcp", to, time.Second)
			return err
		})
	}
	before, err := dial(netip.AddrPortFrom(server.IPs[0], 80).String())
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	port := func() netlink.Link {
		n.mu.Lock()
		defer n.mu.Unlock()
		l, err := netlink.LinkByIndex(n.attached[pod.SandboxID].Port)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	bridge := func() netlink.Link {
		l, err := netlink.LinkByName(cfg.Bridge)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for _, trouble := range []struct {
		what string
		do   func() error
	}{
		{"the bridge is deleted", func() error { return netlink.LinkDel(bridge()) }},
		{"the pod's device is deleted", func() error { return netlink.LinkDel(port()) }},
		{"bridge and device are stopped", func() error {
			return errors.Join(netlink.LinkSetDown(bridge()), netlink.LinkSetDown(port()))
		}},
	} {
		if err := trouble.do(); err != nil {
			t.Fatalf("%s: %v", trouble.what, err)
		}
		to := []string{net.JoinHostPort(n.v4.gateway().String(), "18391")}
		for _, ip := range server.IPs {
			to = append(to, netip.AddrPortFrom(ip, 80).String())
		}
		for _, at := range to {
			testwait.For(t, trouble.what+": the client reaches "+at, func() bool {
				c, err := dial(at)
				if err != nil {
					return false
				}
				return c.Close() == nil
			})
		}
		if err := before.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := before.Write([]byte{1}); err != nil {
			t.Errorf("%s: a connection of before: %v", trouble.what, err)
		}
		if _, err := before.Read(make([]byte, 1)); err != nil {
			t.Errorf("%s: a connection of before: %v", trouble.what, err)
		}
	}
	again, err := n.Attach(t.Context(), pod)
	if err != nil || !slices.Equal(again.IPs, server.IPs) {
		t.Errorf("the pod has %v, had %v, %v", again.IPs, server.IPs, err)
	}
}
