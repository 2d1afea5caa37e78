package bridge

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// All connection tracking entries of a detached pod are deleted, in any state, so that a client that uses the same
// source port again is not sent to an unused address. Entries of others stay.
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

// Few addresses, which the kernel finds, and many, which are searched in a list of all entries: the same entries are
// deleted, those in which the address is the source, the destination, or the endpoint of a Service's address.
func TestForgetsByAddress(t *testing.T) {
	for name, others := range map[string]int{"few": 0, "many": fewAddresses} {
		t.Run(name, func(t *testing.T) {
			inOwnNamespace(t, func(t *testing.T) {
				open(t, testConfig(t)) // tracks connections
				flow := func(from, to, answers string) {
					ip := func(s string) net.IP { return netip.MustParseAddr(s).AsSlice() }
					family := netlink.InetFamily(unix.AF_INET)
					if len(ip(from)) == net.IPv6len {
						family = unix.AF_INET6
					}
					f := netlink.ConntrackFlow{FamilyType: uint8(family), TimeOut: 600, Forward: netlink.IPTuple{
						SrcIP: ip(from), DstIP: ip(to), Protocol: unix.IPPROTO_UDP, SrcPort: 4000, DstPort: 53},
						Reverse: netlink.IPTuple{SrcIP: ip(answers), DstIP: ip(from), Protocol: unix.IPPROTO_UDP,
							SrcPort: 53, DstPort: 4000}}
					if err := netlink.ConntrackCreate(netlink.ConntrackTable, family, &f); err != nil {
						t.Fatal(err)
					}
				}
				flow("10.9.0.7", "192.0.2.1", "192.0.2.1") // the pod is the client
				flow("192.0.2.2", "10.9.0.7", "10.9.0.7")  // the pod is the server
				flow("192.0.2.3", "10.8.0.1", "10.9.0.7")  // it answers for a Service
				flow("10.9.0.8", "10.8.0.1", "10.9.0.9")   // of others
				flow("fd00::7", "fd00::1", "fd00::1")
				flow("fd00::8", "fd00::1", "fd00::1") // of others
				s := &sweep{gone: map[netip.Addr]bool{
					netip.MustParseAddr("10.9.0.7"): true, netip.MustParseAddr("fd00::7"): true}}
				for i := range others {
					s.gone[netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})] = true
				}
				var f flows
				defer f.close()
				for range 2 { // nothing to forget is not an error
					if err := s.run(&f); err != nil {
						t.Fatal(err)
					}
				}
				stays := map[netlink.InetFamily]string{unix.AF_INET: "10.9.0.8", unix.AF_INET6: "fd00::8"}
				for family, want := range stays {
					left, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
					if err != nil {
						t.Fatal(err)
					}
					if len(left) != 1 || left[0].Forward.SrcIP.String() != want {
						t.Errorf("left: %v, want that of %s", left, want)
					}
				}
			})
		})
	}
}

// What it costs to forget one address, with the flows of the host.
func BenchmarkForget(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root")
	}
	gone := []netip.Addr{netip.MustParseAddr("203.0.113.7")}
	s := &sweep{gone: map[netip.Addr]bool{gone[0]: true}}
	var f flows
	defer f.close()
	for name, forget := range map[string]func() error{
		"kernel": func() error { return f.deleteEach(gone) }, "list": func() error { return s.fromList(unix.AF_INET) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := forget(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
