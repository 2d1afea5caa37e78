package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"carob/internal/base/netns"
)

// lab is a node with pods, a machine outside, and one that has an endpoint elsewhere, each in a
// network namespace of its own. Each answers on TCP and UDP with its name and the client's address.
//
//	pod1 10.88.0.11 ─┐
//	pod2 10.88.0.12 ─┤ node ├─ outside 192.0.2.2  (the node there: 192.0.2.1)
//	pod3 10.88.0.13 ─┘      └─ remote  198.51.100.2
type lab struct {
	t     testing.TB
	dir   string
	addrs map[string][2]netip.Addr // IPv4, IPv6
	wait  sync.WaitGroup
}

const (
	served  = 8080 // where everybody in the lab listens
	served2 = 8081
)

func newLab(t testing.TB) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	l := &lab{t: t, dir: t.TempDir(), addrs: map[string][2]netip.Addr{}}
	for _, name := range []string{"node", "pod1", "pod2", "pod3", "outside", "remote", "world"} {
		l.must(netns.DoNew(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetUp(lo), netns.Pin(netns.Current, l.path(name)))
		}))
		t.Cleanup(func() { _ = netns.Unpin(l.path(name)) })
	}
	l.must(netns.Do(l.path("node"), func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0),
			// Many refusals in a short time are expected here.
			os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0),
			os.WriteFile("/proc/sys/net/ipv6/icmp/ratelimit", []byte("0"), 0))
	}))
	for i := range 3 {
		l.join(fmt.Sprint("pod", i+1), "10.88.0.1", fmt.Sprintf("10.88.0.1%d", i+1), "fd00:88::1",
			fmt.Sprintf("fd00:88::1%d", i+1))
	}
	l.join("outside", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2")
	l.join("remote", "198.51.100.1", "198.51.100.2", "2001:db8:1::1", "2001:db8:1::2")
	// A process of the node needs some route to the service range, which the default route is (N2.73).
	// It leads to a machine that drops everything.
	l.join("world", "172.31.0.1", "172.31.0.2", "2001:db8:2::1", "2001:db8:2::2")
	l.must(netns.Do(l.path("node"), func() error {
		link, err := netlink.LinkByName("world")
		if err != nil {
			return err
		}
		i := link.Attrs().Index
		route := func(gw, src string) error {
			return netlink.RouteAdd(&netlink.Route{LinkIndex: i, Gw: net.ParseIP(gw), Src: net.ParseIP(src)})
		}
		return errors.Join(route("172.31.0.2", "192.0.2.1"), route("2001:db8:2::2", "2001:db8::1"))
	}))
	l.addrs["node"] = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	for name := range l.addrs {
		l.serve(name)
	}
	return l
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// join connects a namespace to the node by a point-to-point link.
func (l *lab) join(name, gw4, addr4, gw6, addr6 string) {
	l.t.Helper()
	l.addrs[name] = [2]netip.Addr{netip.MustParseAddr(addr4), netip.MustParseAddr(addr6)}
	ns, err := os.Open(l.path(name))
	l.must(err)
	defer ns.Close()
	host := func(a string) *net.IPNet {
		ip := netip.MustParseAddr(a)
		return &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
	}
	add := func(link netlink.Link, a string) error {
		addr := &netlink.Addr{IPNet: host(a), Flags: 2} // IFA_F_NODAD; ignored for IPv4
		if !strings.Contains(a, ":") {
			addr.Flags = 0
		}
		return netlink.AddrAdd(link, addr)
	}
	l.must(netns.Do(l.path("node"), func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		v := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns.Fd())}
		if err := netlink.LinkAdd(v); err != nil {
			return err
		}
		if err := errors.Join(add(v, gw4), add(v, gw6), netlink.LinkSetUp(v)); err != nil {
			return err
		}
		return errors.Join(netlink.RouteAdd(&netlink.Route{LinkIndex: v.Index, Dst: host(addr4),
			Scope: netlink.SCOPE_LINK}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: v.Index, Dst: host(addr6)}))
	}))
	l.must(netns.Do(l.path(name), func() error {
		e, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := errors.Join(add(e, addr4), add(e, addr6), netlink.LinkSetUp(e)); err != nil {
			return err
		}
		i := e.Attrs().Index
		any := func(s string) *net.IPNet { _, n, _ := net.ParseCIDR(s); return n }
		return errors.Join(netlink.RouteAdd(&netlink.Route{LinkIndex: i, Dst: host(gw4), Scope: netlink.SCOPE_LINK}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: i, Dst: any("0.0.0.0/0"), Gw: net.ParseIP(gw4)}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: i, Dst: host(gw6)}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: i, Dst: any("::/0"), Gw: net.ParseIP(gw6)}))
	}))
}

// resets is the message after which a server resets its connection.
const resets = "reset"

// serve answers each line and each datagram with "name client"; the connection stays.
func (l *lab) serve(name string) {
	l.t.Helper()
	var closers []io.Closer
	l.must(netns.Do(l.path(name), func() error {
		for _, port := range []int{served, served2} {
			tcp, err := net.Listen("tcp", fmt.Sprint(":", port))
			if err != nil {
				return err
			}
			udp, err := net.ListenPacket("udp", fmt.Sprint(":", port))
			if err != nil {
				return err
			}
			closers = append(closers, tcp, udp)
			l.wait.Go(func() {
				for {
					c, err := tcp.Accept()
					if err != nil {
						return
					}
					l.wait.Go(func() {
						defer c.Close()
						stop := context.AfterFunc(l.t.Context(), func() { _ = c.Close() })
						defer stop()
						buf := make([]byte, 100)
						for {
							n, err := c.Read(buf)
							if err != nil {
								return
							}
							if string(buf[:n]) == resets {
								_ = c.(*net.TCPConn).SetLinger(0)
								return
							}
							_, _ = fmt.Fprintf(c, "%s %s", name, hostOf(c.RemoteAddr()))
						}
					})
				}
			})
			l.wait.Go(func() {
				buf := make([]byte, 100)
				for {
					_, from, err := udp.ReadFrom(buf)
					if err != nil {
						return
					}
					_, _ = udp.WriteTo(fmt.Appendf(nil, "%s %s", name, hostOf(from)), from)
				}
			})
		}
		return nil
	}))
	l.t.Cleanup(func() {
		for _, c := range closers {
			_ = c.Close()
		}
	})
}

func hostOf(a net.Addr) netip.Addr { return netip.MustParseAddrPort(a.String()).Addr().Unmap() }

// dial opens a connection from a namespace.
func (l *lab) dial(from, network string, to netip.AddrPort, timeout time.Duration) (c net.Conn, err error) {
	err = netns.Do(l.path(from), func() error {
		c, err = net.DialTimeout(network, to.String(), timeout)
		return err
	})
	return c, err
}

// exchange sends one message over a connection and returns which pod responded and which client it saw.
func exchange(c net.Conn, timeout time.Duration) (name string, client netip.Addr, err error) {
	_ = c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.Write([]byte("?")); err != nil {
		return "", netip.Addr{}, err
	}
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err != nil {
		return "", netip.Addr{}, err
	}
	name, addr, _ := strings.Cut(string(buf[:n]), " ")
	client, err = netip.ParseAddr(addr)
	return name, client, err
}

// patience is how long an answer is waited for. On a machine with much other work a handshake can take seconds: a lost
// packet is sent again after 1, 3, 7 and 15 seconds.
const patience = 30 * time.Second

// reach sends a message over a new connection.
func (l *lab) reach(from, network string, to netip.AddrPort, timeout time.Duration) (string, netip.Addr, error) {
	c, err := l.dial(from, network, to, timeout)
	if err != nil {
		return "", netip.Addr{}, err
	}
	defer c.Close()
	return exchange(c, timeout)
}
