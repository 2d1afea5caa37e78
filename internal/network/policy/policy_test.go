package policy

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
	"carob/internal/core/netplan/policies"
)

// After random changes, each written as a change, the kernel has what a fresh installation writes.
func TestKernelState(t *testing.T) {
	in(t, func(t *testing.T) {
		e, both := enforcer(t), halves()
		defer closeAll(both)
		d := dice{rand.New(rand.NewPCG(1, 2)), 12}
		for step := range 60 {
			for range 20 {
				d.change(e.plan)
				if err := e.put(t.Context(), both); err != nil {
					t.Fatal(err)
				}
			}
			for _, h := range both {
				if h.table != nil && h.wrong {
					t.Fatal("a change was refused")
				}
			}
			have := kernel(t)
			fresh := fresh(t, e.plan)
			if !slices.Equal(have, fresh) {
				t.Fatalf("step %d: the kernel has\n%q\nfresh is\n%q", step, have, fresh)
			}
		}
		for i := range 12 {
			e.plan.DeletePod(strconv.Itoa(i))
		}
		if err := e.put(t.Context(), both); err != nil {
			t.Fatal(err)
		}
		if left := kernel(t); len(left) > 0 {
			t.Errorf("left over: %q", left)
		}
	})
}

func closeAll(both []*half) {
	for _, h := range both {
		h.close()
	}
}

// fresh is what a fresh installation leads to, in a namespace of its own.
func fresh(t *testing.T, plan *policies.Plan) (lines []string) {
	t.Helper()
	in(t, func(t *testing.T) {
		e, both := enforcer(t), halves()
		defer closeAll(both)
		whole := plan.Table()
		for _, h := range both {
			if err := e.compare(t.Context(), h, h.of(&whole)); err != nil {
				t.Error(err)
			}
		}
		lines = kernel(t)
	})
	return lines
}

// lab is a router, whose namespace is the thread's, and pods behind it.
type lab struct {
	pods []string // paths of their namespaces
}

const probed = 6

var ports = []int{80, 81}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{}
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/thread-self/net/../../../sys/net/"+name, []byte("1"), 0); err != nil {
			// /proc/sys shows the namespace of the thread that opens it
			if err := os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	up(t, "lo")
	dir := t.TempDir()
	for i := range probed {
		path := filepath.Join(dir, strconv.Itoa(i))
		if err := netns.DoNew(func() error { return netns.Pin(netns.Current, path) }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netns.Unpin(path) })
		l.pods = append(l.pods, path)
		l.wire(t, i)
		l.serve(t, i)
	}
	return l
}

func up(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func one32(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

var gateway, gateway6 = netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")

// wire connects a pod with the router.
func (l *lab) wire(t *testing.T, i int) {
	t.Helper()
	name := fmt.Sprint("pod", i)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0"}); err != nil {
		t.Fatal(err)
	}
	peer, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	ns, err := os.Open(l.pods[i])
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := netlink.LinkSetNsFd(peer, int(ns.Fd())); err != nil {
		t.Fatal(err)
	}
	port := up(t, name)
	check := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	nodad := func(a netip.Addr) *netlink.Addr {
		out := &netlink.Addr{IPNet: one32(a)}
		if a.Is6() {
			out.Flags = unix.IFA_F_NODAD
		}
		return out
	}
	check(netlink.AddrAdd(port, nodad(gateway)), netlink.AddrReplace(port, nodad(gateway6)))
	for _, a := range []netip.Addr{at(i), at6(i)} {
		check(netlink.RouteAdd(&netlink.Route{LinkIndex: port.Attrs().Index, Dst: one32(a), Scope: netlink.SCOPE_LINK}))
	}
	check(netns.Do(l.pods[i], func() error {
		up(t, "lo")
		eth0 := up(t, "eth0")
		for _, a := range []netip.Addr{at(i), at6(i)} {
			if err := netlink.AddrAdd(eth0, nodad(a)); err != nil {
				return err
			}
		}
		index := eth0.Attrs().Index
		return errors.Join(
			netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: one32(gateway), Scope: netlink.SCOPE_LINK}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gateway.AsSlice()}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gateway6.AsSlice()}))
	}))
}

// serve answers in a pod: TCP connections with their end, UDP packets with themselves.
func (l *lab) serve(t *testing.T, i int) {
	t.Helper()
	for _, port := range ports {
		var tcp net.Listener
		var udp net.PacketConn
		err := netns.Do(l.pods[i], func() (err error) {
			if tcp, err = net.Listen("tcp", fmt.Sprint("[::]:", port)); err == nil {
				udp, err = net.ListenPacket("udp4", fmt.Sprint(":", port))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		var udp6 net.PacketConn
		if err := netns.Do(l.pods[i], func() (err error) {
			udp6, err = net.ListenPacket("udp6", fmt.Sprint("[::]:", port))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _, _ = tcp.Close(), udp.Close(), udp6.Close() })
		go func() {
			for {
				c, err := tcp.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
		for _, u := range []net.PacketConn{udp, udp6} {
			go func() {
				buf := make([]byte, 64)
				for {
					n, from, err := u.ReadFrom(buf)
					if err != nil {
						return
					}
					_, _ = u.WriteTo(buf[:n], from)
				}
			}()
		}
	}
}

// How long a packet that must pass, and one that must not, are waited for. A packet that passes
// although it must not is missed if it takes longer; nothing fails because it takes long.
const mustPass, mustNot = 30 * time.Second, 200 * time.Millisecond

// try reports whether the server of a packet answers.
func (l *lab) try(from int, p policies.Packet, limit time.Duration) (bool, error) {
	network := map[uint8]string{policies.TCP: "tcp", policies.UDP: "udp"}[p.Protocol]
	d := net.Dialer{Timeout: limit, LocalAddr: nil}
	var c net.Conn
	err := netns.Do(l.pods[from], func() (err error) {
		c, err = d.Dial(network, netip.AddrPortFrom(p.Dst, p.Port).String())
		return err
	})
	if err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return false, nil
		}
		return false, err
	}
	defer c.Close()
	if network == "tcp" {
		return true, nil
	}
	until := time.Now().Add(limit)
	for time.Now().Before(until) {
		if _, err := c.Write([]byte("x")); err != nil {
			return false, err
		}
		_ = c.SetReadDeadline(time.Now().Add(min(limit, time.Second)))
		if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
			return true, nil
		}
	}
	return false, nil
}

// Packets that are really sent between pods arrive exactly when the interpreter of the table allows
// them, for random tables.
func TestPackets(t *testing.T) {
	in(t, func(t *testing.T) {
		l := newLab(t)
		e, both := enforcer(t), halves()
		defer closeAll(both)
		d := dice{rand.New(rand.NewPCG(3, 4)), probed}
		for i := range probed {
			e.plan.SetPod(d.pod(i))
		}
		e.plan.SetNamespace("x", map[string]string{"app": "a"})
		e.plan.SetNamespace("y", map[string]string{"app": "b"})
		tables := 25
		if n, err := strconv.Atoi(os.Getenv("POLICY_TABLES")); err == nil {
			tables = n
		}
		passed, stopped := 0, 0
		for round := range tables {
			for range 4 {
				d.change(e.plan)
			}
			if err := e.put(t.Context(), both); err != nil {
				t.Fatal(err)
			}
			var yes, no sync.WaitGroup
			for range 40 {
				from, to := d.IntN(probed), d.IntN(probed)
				p := policies.Packet{Src: at(from), Dst: at(to), Protocol: one(d, policies.TCP, policies.UDP),
					Port: uint16(one(d, ports...))}
				if d.IntN(3) == 0 {
					p.Src, p.Dst = at6(from), at6(to)
				}
				want := e.plan.Allowed(p)
				group, limit := &no, mustNot
				if want {
					group, limit = &yes, mustPass
					passed++
				} else {
					stopped++
				}
				group.Go(func() {
					if got, err := l.try(from, p, limit); got != want || err != nil {
						t.Errorf("table %d: %+v arrived: %v, allowed: %v; %v", round, p, got, want, err)
					}
				})
			}
			yes.Wait()
			no.Wait()
			if t.Failed() {
				t.Fatal(e.plan.Table())
			}
		}
		if passed == 0 || stopped == 0 {
			t.Errorf("%d passed, %d were stopped", passed, stopped)
		}
		t.Logf("%d passed, %d were stopped", passed, stopped)
	})
}
