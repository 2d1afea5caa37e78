package bridge

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// Nothing of a detached pod's connections is remembered, in whatever state they were: a client that takes the same
// source port again is not led to where nobody is. Flows of others stay.
func TestDetachForgetsFlows(t *testing.T) {
	inOwnNamespace(t, func(t *testing.T) {
		n := open(t, testConfig(t))
		attach := func(name string) network.Attachment {
			at, err := n.Attach(t.Context(), network.Pod{UID: name, Namespace: "default", Name: name, SandboxID: name})
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		connect := func(at network.Attachment) {
			var l net.Listener
			if err := netns.Do(at.NetNS, func() (err error) {
				l, err = net.Listen("tcp4", ":80")
				return err
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			c, err := net.Dial("tcp", netip.AddrPortFrom(at.IPs[0], 80).String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
		}
		flowsOf := func(ip netip.Addr) (n int) {
			list, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range list {
				if f.Reverse.SrcIP.Equal(ip.AsSlice()) {
					n++
				}
			}
			return n
		}
		stays := attach("stays")
		connect(stays)
		var ends []network.Attachment
		for i := range 5 {
			at := attach(fmt.Sprint("ends", i))
			connect(at)
			if flowsOf(at.IPs[0]) != 1 {
				t.Fatal("the connection is not tracked")
			}
			ends = append(ends, at)
		}
		var all sync.WaitGroup
		for i, at := range ends { // at once: they share a look at the flows
			all.Go(func() {
				if err := n.Detach(t.Context(), fmt.Sprint("ends", i)); err != nil {
					t.Error(err)
				}
				if left := flowsOf(at.IPs[0]); left > 0 {
					t.Errorf("%d flows are left when the pod is detached", left)
				}
			})
		}
		all.Wait()
		if flowsOf(stays.IPs[0]) != 1 {
			t.Error("the flow of another pod is gone")
		}
	})
}
