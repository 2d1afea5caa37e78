package services

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	nl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/base/netns"
	core "carob/internal/core/netplan/services"
)

// A connection that was open when its endpoint left ends by a reset of the endpoint, as when the program ends with
// unread bytes, and the client takes the same port again at once. Connection tracking has the connection for ten more
// seconds, with its old endpoint: the client must reach one that serves (N8.13, N8.16).
func TestReopenedAfterReset(t *testing.T) {
	d := newDriver(t)
	d.store("a", d.ip(1), d.nodePort(false), "pod1")
	d.until("pod1 is in", func() bool { return d.proxy.running && d.proxy.UseOf("pod1") == In })
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(d.ip(1)), 80),
		netip.AddrPortFrom(d.addr("node"), 30080)} {
		connect := func() *net.TCPConn {
			var c net.Conn
			d.must(netns.Do(d.path("outside"), func() (err error) {
				c, err = (&net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{Port: 40405}}).Dial("tcp", to.String())
				return err
			}))
			return c.(*net.TCPConn)
		}
		d.setEndpoints(d.slice("a", "pod1"))
		d.until("pod1 is in", func() bool { return d.proxy.UseOf("pod1") == In && d.proxy.UseOf("pod2") == Out })
		c := connect()
		if name, _, err := exchange(c, patience); name != "pod1" {
			t.Fatalf("before: %q, %v", name, err)
		}
		d.setEndpoints(d.slice("a", "pod2"))
		d.until("pod2 is in", func() bool { return d.proxy.UseOf("pod1") == Out && d.proxy.UseOf("pod2") == In })
		if name, _, err := exchange(c, patience); name != "pod1" {
			t.Fatalf("the open connection: %q, %v", name, err)
		}
		_, err := c.Write([]byte(resets))
		d.must(err)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Fatalf("the end of the connection: %v", err)
		}
		d.must(c.Close())
		c = connect()
		if name, _, err := exchange(c, patience); name != "pod2" {
			t.Errorf("the same port to %s reaches %q, %v", to, name, err)
		}
		d.must(c.SetLinger(0))
		d.must(c.Close())
	}
}

// The TCP connections to the endpoints that left are marked, and no others: whether the kernel selects them, or all are
// listed because many endpoints left at once.
func TestMarkedConnections(t *testing.T) {
	families(t, func(t *testing.T, p *testPlane) {
		index := family(p.addr("pod1"))
		gone, other := netip.AddrPortFrom(p.addr("pod1"), served), netip.AddrPortFrom(p.addr("pod1"), served2)
		r := newReopener(func() {})
		p.must(netns.Do(p.path("node"), r.open))
		defer r.close()
		for i, many := range []bool{false, true} {
			p.forgetFlows()
			p.track(core.TCP, gone, 1001)
			p.track(core.TCP, gone, 1002)
			p.track(core.TCP, other, 1003)
			p.track(core.UDP, gone, 1004)
			leaving := map[netip.AddrPort]bool{gone: true}
			for n := range fewEndpoints * i {
				leaving[netip.AddrPortFrom(p.addr("pod2"), uint16(9000+n))] = true
			}
			for range 2 { // what is marked stays so
				p.must(r.mark(leaving))
				marked, unmarked := p.marks(r, index, other)
				if marked != 2 || unmarked != 1 {
					t.Errorf("many %v: %d connections to the endpoint are marked, want 2; %d others are not, want 1",
						many, marked, unmarked)
				}
			}
		}
	})
}

// established is a state in the kernel's enum tcp_conntrack.
const established = 3

// track makes the kernel track a connection from outside to the first cluster IP, which leads to an endpoint.
func (p *testPlane) track(protocol core.Protocol, to netip.AddrPort, port uint16, state ...uint8) {
	p.t.Helper()
	client, vip := p.addr("outside").AsSlice(), netip.MustParseAddr(p.ip(1)).AsSlice()
	flow := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 100,
		Forward: netlink.IPTuple{SrcIP: client, DstIP: vip, SrcPort: port, DstPort: 80, Protocol: uint8(protocol)},
		Reverse: netlink.IPTuple{SrcIP: to.Addr().AsSlice(), DstIP: client, SrcPort: to.Port(), DstPort: port,
			Protocol: uint8(protocol)}}
	if p.v6 {
		flow.FamilyType = unix.AF_INET6
	}
	if protocol == core.TCP {
		flow.ProtoInfo = &netlink.ProtoInfoTCP{State: append(state, established)[0]}
	}
	p.must(p.tracking(func(h *netlink.Handle, family netlink.InetFamily) error {
		return h.ConntrackCreate(netlink.ConntrackTable, family, flow)
	}))
}

// The kernel lists only the connections of one protocol, so that many of TCP do not delay the clean-up of UDP, and
// those that are deleted are UDP to an endpoint that does not serve, and TCP that has ended there (N2.J).
func TestForgottenConnections(t *testing.T) {
	families(t, func(t *testing.T, p *testPlane) {
		gone, serves := netip.AddrPortFrom(p.addr("pod1"), served), netip.AddrPortFrom(p.addr("pod2"), served)
		p.track(core.UDP, gone, 1001)
		p.track(core.UDP, serves, 1002)
		p.track(core.TCP, gone, 1003)
		p.track(core.TCP, gone, 1004, tcpLastAck)
		p.track(core.TCP, gone, 1005, tcpClose)
		p.track(core.TCP, serves, 1006, tcpClose)
		index := family(p.addr("pod1"))
		for i, f := range newForgetters() {
			p.must(netns.Do(p.path("node"), f.open))
			defer f.close()
			at := core.Port{Addr: netip.MustParseAddr(p.ip(1)), Proto: f.protocol, Port: 80}
			s := &stale{flows: map[core.Port]serving{at: {endpoints: []netip.AddrPort{serves}}}}
			for _, want := range []struct{ listed, deleted int }{{[]int{2, 4}[i], 1 + i}, {[]int{1, 2}[i], 0}} {
				conn, err := f.dial(listTimeout)
				p.must(err)
				request, err := listAll(index, uint8(f.protocol))
				p.must(err)
				list, err := conn.Execute(request)
				p.must(errors.Join(err, conn.Close()))
				deleted, err := f.delete(index, s)
				p.must(err)
				if len(list) != want.listed || deleted != want.deleted {
					t.Errorf("%v: %d connections were listed, and %d deleted, want %+v", f.protocol, len(list), deleted,
						want)
				}
			}
		}
	})
}

// marks counts the tracked TCP connections that are marked, and those to an endpoint that are not.
func (p *testPlane) marks(r *reopener, family int, to netip.AddrPort) (marked, unmarked int) {
	p.t.Helper()
	conn, err := nl.Dial(unix.NETLINK_NETFILTER, &nl.Config{NetNS: int(r.ns.Fd())})
	p.must(err)
	defer conn.Close()
	request, err := listAll(family, unix.IPPROTO_TCP)
	p.must(err)
	list, err := conn.Execute(request)
	p.must(err)
	for _, m := range list {
		f, err := parseFlow(m.Data)
		p.must(err)
		if f.marked {
			marked++
		} else if f.reply.from == to {
			unmarked++
		}
	}
	return marked, unmarked
}

// A message that is cut anywhere, or has other bytes, is an error or a connection without an endpoint; nothing panics.
func FuzzParseFlow(f *testing.F) {
	whole, err := flow{original: []byte{8, 0, 1, 0, 1, 2, 3, 4}}.closing(0)
	if err != nil {
		f.Fatal(err)
	}
	list, err := listTo(0, netip.MustParseAddrPort("10.0.0.1:80"))
	if err != nil {
		f.Fatal(err)
	}
	for _, data := range [][]byte{whole.Data, list.Data} {
		for i := range data {
			f.Add(data[:i])
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, _ := parseFlow(data); len(got.original) > len(data) {
			t.Errorf("%+v of %d bytes", got, len(data))
		}
	})
}

// A pod whose endpoint left the table is In until its connections are marked, and Follow reports it then.
func TestPodIsOutWhenMarked(t *testing.T) {
	p := New(Config{Client: fake.NewClientset(), Node: "here"})
	p.running = true
	p.reopen.left([]core.Change{
		{Delete: []core.Element{{Set: core.Endpoints, To: netip.MustParseAddrPort("10.0.0.1:80")}},
			Left: []types.UID{"leaves"}},
		{Delete: []core.Element{{Set: core.Endpoints, To: netip.MustParseAddrPort("10.0.0.2:80")}},
			Add:  []core.Element{{Set: core.Endpoints, To: netip.MustParseAddrPort("10.0.0.2:80")}},
			Left: []types.UID{"moves"}},
	})
	p.note([]types.UID{"leaves", "moves"})
	if got := p.released(); !slices.Equal(got, []types.UID{"moves"}) || !p.Routed("leaves") || p.Routed("moves") {
		t.Errorf("before the pass: %v was released", got)
	}
	if err := p.reopen.open(); err != nil {
		t.Fatal(err)
	}
	changed := p.Changed()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { p.reopen.run(ctx); close(ended) }()
	<-changed
	if got := p.released(); !slices.Equal(got, []types.UID{"leaves"}) || p.Routed("leaves") {
		t.Errorf("after the pass: %v was released", got)
	}
	cancel()
	<-ended
}
