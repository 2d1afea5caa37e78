package unserved

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
)

func TestDivide(t *testing.T) {
	p := netip.MustParsePrefix
	ranges := []netip.Prefix{p("10.96.0.0/16"), p("fd00:96::/112")}
	for _, tt := range []struct {
		routes []netip.Prefix
		free   []netip.Prefix
		taken  []Overlap
	}{
		{nil, ranges, nil},
		{[]netip.Prefix{p("0.0.0.0/0"), p("192.0.2.0/24"), p("::/0")}, ranges, nil},
		{[]netip.Prefix{p("10.96.3.0/24")}, ranges[1:], []Overlap{{ranges[0], p("10.96.3.0/24")}}},
		{[]netip.Prefix{p("10.0.0.0/8"), p("fd00::/8")}, nil,
			[]Overlap{{ranges[0], p("10.0.0.0/8")}, {ranges[1], p("fd00::/8")}}},
	} {
		free, taken := divide(ranges, tt.routes)
		if !slices.Equal(free, tt.free) || !slices.Equal(taken, tt.taken) {
			t.Errorf("%v: %v, %v", tt.routes, free, taken)
		}
	}
}

// A connection from the host or a pod to a cluster IP is refused at once, even if another machine
// has the address; redirected packets reach their destination; routes of the host take precedence;
// and after Remove nothing is left. The test runs in its own network namespace.
func TestUnservedAddresses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	const mark = "CAROB_TEST_OWN_NAMESPACE"
	if os.Getenv(mark) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestUnservedAddresses$", "-test.v")
		cmd.Env = append(os.Environ(), mark+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		if out, err := cmd.CombinedOutput(); err != nil ||
			!bytes.Contains(out, []byte("--- PASS: TestUnservedAddresses")) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// pod ── host ── stranger, which has all addresses
	space := func(name, hostAddr, peerAddr string) string {
		path := t.TempDir() + "/ns"
		must(netns.DoNew(func() error { return netns.Pin(netns.Current, path) }))
		t.Cleanup(func() { _ = netns.Unpin(path) })
		fd, err := os.Open(path)
		must(err)
		defer fd.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		v := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(fd.Fd())}
		must(netlink.LinkAdd(v))
		a, err := netlink.ParseAddr(hostAddr)
		must(err)
		must(errors.Join(netlink.AddrAdd(v, a), netlink.LinkSetUp(v)))
		must(netns.Do(path, func() error {
			l, err := netlink.LinkByName("eth0")
			must(err)
			b, err := netlink.ParseAddr(peerAddr)
			must(err)
			return errors.Join(netlink.AddrAdd(l, b), netlink.LinkSetUp(l),
				netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: a.IP}))
		}))
		return path
	}
	lo, err := netlink.LinkByName("lo")
	must(err)
	must(netlink.LinkSetUp(lo))
	pod, outside := space("pod", "198.51.100.1/24", "198.51.100.2/24"), space("world", "192.0.2.1/24", "192.0.2.2/24")
	must(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	must(netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(192, 0, 2, 2)}))
	service := netip.MustParseAddrPort("10.96.0.1:443")
	must(netns.Do(outside, func() error {
		l, err := netlink.LinkByName("lo")
		must(err)
		a, err := netlink.ParseAddr("10.96.0.1/32")
		must(err)
		must(errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l)))
		server, err := net.Listen("tcp", ":443")
		must(err)
		go func() {
			for {
				c, err := server.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
		return nil
	}))
	dial := func(ns, kind string) error {
		try := func() error {
			c, err := net.DialTimeout(kind, service.String(), 10*time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			if kind == "tcp" {
				return nil
			}
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err = c.Write([]byte("?")); err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			return err
		}
		if ns == "" {
			return try()
		}
		return netns.Do(ns, try)
	}
	from := map[string]string{"the host": "", "a pod": pod}
	answers := func(when string, want error) {
		t.Helper()
		for who, ns := range from {
			if err := dial(ns, "tcp"); !errors.Is(err, want) {
				t.Errorf("%s, from %s: %v, want %v", when, who, err, want)
			}
		}
	}
	answers("before", nil) // the stranger
	r := New("carob-test-services", []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
	taken, err := r.Sync()
	must(err)
	if len(taken) != 0 {
		t.Errorf("overlaps %v", taken)
	}
	answers("refused", syscall.ECONNREFUSED)
	for who, ns := range from {
		// The kernel reports this to its own process when it sends.
		if err := dial(ns, "udp"); !errors.Is(err, syscall.ECONNREFUSED) &&
			!(ns == "" && errors.Is(err, syscall.EPERM)) {
			t.Errorf("UDP from %s: %v", who, err)
		}
	}

	// A service data plane redirects before the filter hooks.
	proxy(t, netip.MustParseAddrPort("192.0.2.2:443"))
	answers("served", nil)
	must(Remove("proxy"))
	answers("no longer served", syscall.ECONNREFUSED)

	// The rules were flushed; nothing else has changed.
	must(Remove("carob-test-services"))
	_, err = r.Sync()
	must(err)
	answers("after a flush", syscall.ECONNREFUSED)

	// A VPN adds a route into the range.
	vpn := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(10, 96, 0, 0).To4(), Mask: net.CIDRMask(24, 32)},
		Gw: net.IPv4(192, 0, 2, 2)}
	must(netlink.RouteAdd(vpn))
	taken, err = r.Sync()
	must(err)
	if len(taken) != 1 || taken[0].Route.String() != "10.96.0.0/24" {
		t.Errorf("overlaps %v", taken)
	}
	answers("by the host's own route", nil)
	must(netlink.RouteDel(vpn))
	_, err = r.Sync()
	must(err)
	answers("the route is gone", syscall.ECONNREFUSED)

	must(Remove("carob-test-services"))
	must(Remove("carob-test-services")) // twice
	answers("after the end", nil)
}

// proxy redirects traffic to the service, as a service data plane does.
func proxy(t *testing.T, to netip.AddrPort) {
	t.Helper()
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "proxy"})
	for name, hook := range map[string]*nftables.ChainHook{"output": nftables.ChainHookOutput,
		"prerouting": nftables.ChainHookPrerouting} {
		c := conn.AddChain(&nftables.Chain{Table: table, Name: name, Type: nftables.ChainTypeNAT, Hooknum: hook,
			Priority: nftables.ChainPriorityNATDest})
		conn.AddRule(&nftables.Rule{Table: table, Chain: c,
			Exprs: slices.Concat(destination(netip.MustParsePrefix("10.96.0.0/16")), []expr.Any{
				&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
			})})
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}
