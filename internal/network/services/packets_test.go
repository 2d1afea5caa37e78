package services

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/netns"
	core "carob/internal/core/netplan/services"
	"carob/internal/network/nft"
)

// testPlane is one family's table in the lab's node.
type testPlane struct {
	*lab
	codec
	state *core.State
	table *core.Table
	nft   *nft.Table
}

func labNode(v6 bool) core.Node {
	return core.Node{Name: "here", Pods: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/24"),
		netip.MustParsePrefix("fd00:88::/64")},
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
}

func newPlane(t testing.TB, v6 bool) *testPlane {
	t.Helper()
	p := &testPlane{lab: newLab(t), codec: codec{v6}, state: core.New(v6, labNode(v6)), table: core.NewTable()}
	p.open()
	p.must(p.nft.Sync(p.content(p.state)))
	for e := range p.state.Elements() {
		p.table[e.Set][e.Key] = e
	}
	return p
}

// open connects as a new process does.
func (p *testPlane) open() {
	p.must(netns.Do(p.path("node"), func() (err error) {
		p.nft, err = nft.Open(nft.Config{Name: "carob-test", Family: p.family(), Sets: p.sets(),
			Version: layoutVersion})
		return err
	}))
	table := p.nft
	p.t.Cleanup(func() { _ = table.Close() })
}

func (p *testPlane) update(in ...core.Input) {
	p.t.Helper()
	c := p.state.Update(in)
	if !p.table.Apply(c) {
		p.t.Fatalf("refused: %+v", c)
	}
	p.must(p.nft.Apply(p.change(c)))
}

// service is a Service with TCP and UDP.
func (p *testPlane) service(name, ip string, change func(*corev1.Service), endpoints ...string) core.Input {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	s.Spec = corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{
		{Name: "tcp", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP}}}
	if change != nil {
		change(s)
	}
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{
		{Name: new("tcp"), Port: new(int32(served)), Protocol: new(corev1.ProtocolTCP)},
		{Name: new("udp"), Port: new(int32(served)), Protocol: new(corev1.ProtocolUDP)}}}
	if p.v6 {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, e := range endpoints {
		node := "here"
		if e == "remote" {
			node = "there"
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{p.addr(e).String()},
			NodeName:  &node,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", UID: types.UID(e)}})
	}
	return core.Input{Name: types.NamespacedName{Namespace: "ns", Name: name}, Service: s,
		Slices: []*discoveryv1.EndpointSlice{slice}}
}

func (p *testPlane) addr(name string) netip.Addr {
	if p.v6 {
		return p.addrs[name][1]
	}
	return p.addrs[name][0]
}

func (p *testPlane) ip(n int) string {
	if p.v6 {
		return fmt.Sprintf("fd00:96::%d", n)
	}
	return fmt.Sprintf("10.96.0.%d", n)
}

func (p *testPlane) external(n int) string {
	if p.v6 {
		return fmt.Sprintf("2001:db8:9::%d", n)
	}
	return fmt.Sprintf("203.0.113.%d", n)
}

// silence is how long a dropped packet is waited for; nothing that is answered depends on it.
const silence = 100 * time.Millisecond

// check sends a connection and compares what happens with the interpreter.
func (p *testPlane) check(from, network string, to netip.AddrPort) {
	p.t.Helper()
	proto := core.TCP
	if network == "udp" {
		proto = core.UDP
	}
	source := p.addr(from)
	want := p.table.Decide(p.state.Node(), core.Packet{Source: source, FromNode: from == "node",
		To: core.Port{Addr: to.Addr(), Proto: proto, Port: to.Port()}})
	timeout := patience
	if want.Outcome == core.Dropped || want.Outcome == core.Pass {
		timeout = silence
	}
	name, client, err := p.reach(from, network, to, timeout)
	where := fmt.Sprintf("%s from %s to %s", network, from, to)
	switch want.Outcome {
	case core.Forward:
		if err != nil {
			p.t.Errorf("%s: %v, want an answer of %v%s", where, err, want.List, p.flows(to))
			return
		}
		if !slices.Contains(want.List, netip.AddrPortFrom(p.addr(name), served)) {
			p.t.Errorf("%s: %s answered, want one of %v", where, name, want.List)
		}
		// The node's own connections have an address of the node either way.
		if masqueraded := client != source; from != "node" && name != "node" && masqueraded != (want.Masquerade ||
			name == from) {
			p.t.Errorf("%s: %s saw the client as %s, masquerade %v", where, name, client, want.Masquerade)
		}
	case core.Rejected:
		// The kernel returns this error to a local process when it refuses to send.
		if !errors.Is(err, syscall.ECONNREFUSED) && !(from == "node" && errors.Is(err, syscall.EPERM)) {
			p.t.Errorf("%s: %s %v, want refused", where, name, err)
		}
	case core.Dropped:
		var timeout net.Error
		if !(errors.As(err, &timeout) && timeout.Timeout()) && !(from == "node" && errors.Is(err, syscall.EPERM)) {
			p.t.Errorf("%s: %s %v, want silence", where, name, err)
		}
	case core.Pass:
	}
}

// forgetFlows deletes the connection tracking entries of earlier cases: the kernel gives a client of UDP a source port
// that it has had before about once in a thousand times, and a flow with it would continue by the rules of its first
// packet.
func (p *testPlane) forgetFlows() {
	p.t.Helper()
	p.must(p.tracking(func(h *netlink.Handle, _ netlink.InetFamily) error {
		return h.ConntrackTableFlush(netlink.ConntrackTable)
	}))
}

// tracking calls f with the node's connection tracking.
func (p *testPlane) tracking(f func(*netlink.Handle, netlink.InetFamily) error) error {
	return netns.Do(p.path("node"), func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer h.Close()
		if p.v6 {
			return f(h, unix.AF_INET6)
		}
		return f(h, unix.AF_INET)
	})
}

// flows lists the connection tracking entries of an address, and the packets that the host's CPUs dropped.
func (p *testPlane) flows(of netip.AddrPort) string {
	var out strings.Builder
	err := p.tracking(func(h *netlink.Handle, family netlink.InetFamily) error {
		list, err := h.ConntrackTableList(netlink.ConntrackTable, family)
		for _, f := range list {
			to, _ := netip.AddrFromSlice(f.Forward.DstIP)
			if to.Unmap() == of.Addr() && f.Forward.DstPort == of.Port() {
				fmt.Fprintf(&out, "\n%s %+v", f, f.ProtoInfo)
			}
		}
		dropped, _ := os.ReadFile("/proc/net/softnet_stat")
		fmt.Fprintf(&out, "\n%s", dropped)
		return err
	})
	if err != nil {
		fmt.Fprintf(&out, "\n%v", err)
	}
	return out.String()
}

func onlyTCP(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] }

func policyLocal(s *corev1.Service) {
	s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
}

func (p *testPlane) nodePort(local bool, ranges ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
		if local {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		s.Spec.ExternalIPs = []string{p.external(1)}
		s.Spec.LoadBalancerSourceRanges = ranges
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: p.external(2)}}
	}
}

func families(t *testing.T, f func(t *testing.T, p *testPlane)) {
	for _, v6 := range []bool{false, true} {
		t.Run(codec{v6}.name(), func(t *testing.T) { f(t, newPlane(t, v6)) })
	}
}

// Real packets go where the interpreter predicts, from pods, the node and outside, to every kind of
// address, with every policy and state of endpoints.
func TestPackets(t *testing.T) {
	families(t, func(t *testing.T, p *testPlane) {
		ranges := p.addr("outside").String() + "/" + map[bool]string{false: "31", true: "127"}[p.v6]
		for _, tt := range []struct {
			name      string
			change    func(*corev1.Service)
			endpoints []string
		}{
			{"cluster IP", nil, []string{"pod1", "pod2", "remote"}},
			{"one endpoint, hairpin", nil, []string{"pod1"}},
			{"no endpoint", p.nodePort(false), nil},
			{"internal Local", policyLocal, []string{"pod1", "remote"}},
			{"internal Local, none here", policyLocal, []string{"remote"}},
			{"external Cluster", p.nodePort(false), []string{"pod1", "pod2", "remote"}},
			{"external Local", p.nodePort(true), []string{"pod1", "remote"}},
			{"external Local, none here", p.nodePort(true), []string{"remote"}},
			{"external Local, none", p.nodePort(true), nil},
			{"source ranges", p.nodePort(true, ranges, p.addr("pod1").String()+map[bool]string{false: "/32",
				true: "/128"}[p.v6]),
				[]string{"pod2"}},
			{"the node's own endpoint", onlyTCP, []string{"node"}}, // a server of UDP would answer from another address
		} {
			p.update(p.service("a", p.ip(1), tt.change, tt.endpoints...))
			p.forgetFlows()
			t.Run(tt.name, func(t *testing.T) {
				old := p.t
				p.lab.t = t
				defer func() { p.lab.t = old }()
				var checks sync.WaitGroup
				for _, network := range []string{"tcp", "udp"} {
					for _, from := range []string{"pod1", "pod2", "node", "outside"} {
						for _, to := range []netip.AddrPort{
							netip.AddrPortFrom(netip.MustParseAddr(p.ip(1)), 80),
							netip.AddrPortFrom(netip.MustParseAddr(p.ip(1)), 81),
							netip.AddrPortFrom(netip.MustParseAddr(p.external(1)), 80),
							netip.AddrPortFrom(netip.MustParseAddr(p.external(2)), 80),
							netip.AddrPortFrom(p.addr("node"), 30080),
						} {
							checks.Go(func() { p.check(from, network, to) })
						}
					}
				}
				checks.Wait()
			})
		}
		// What an administrator reads, and what other tools read of it.
		var out []byte
		p.must(netns.Do(p.path("node"), func() (err error) {
			out, err = exec.Command("nft", "list", "ruleset").CombinedOutput()
			return err
		}))
		if strings.Contains(string(out), "rror") {
			t.Errorf("nft cannot list the table:\n%s", out)
		}
	})
}

// Connections are distributed among all endpoints, and with affinity a client stays with one.
func TestConnectionsAreDistributed(t *testing.T) {
	families(t, func(t *testing.T, p *testPlane) {
		vip := netip.AddrPortFrom(netip.MustParseAddr(p.ip(1)), 80)
		all := []string{"pod1", "pod2", "remote"}
		seen := func(n int) map[string]int {
			m := map[string]int{}
			for range n {
				name, _, err := p.reach("outside", "tcp", vip, patience)
				p.must(err)
				m[name]++
			}
			return m
		}
		p.update(p.service("a", p.ip(1), nil, all...))
		if m := seen(100); len(m) != 3 { // each is missed with a chance of 2^-58
			t.Errorf("distributed as %v", m)
		}
		sticky := func(s *corev1.Service) {
			p.nodePort(false)(s)
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(600))}}
		}
		p.update(p.service("a", p.ip(1), sticky, all...))
		first := seen(20)
		if len(first) != 1 {
			t.Fatalf("a client with affinity reached %v", first)
		}
		one := slices.Collect(maps.Keys(first))[0]
		// The node port leads the same client to the same endpoint (N2.41).
		if name, _, err := p.reach("outside", "tcp", netip.AddrPortFrom(p.addr("node"), 30080),
			patience); err != nil || name != one {
			t.Errorf("by the node port %s, before %s: %v", name, one, err)
		}
		// Others come and go: it stays. Its endpoint goes: it takes another one and stays with that.
		rest := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == one })
		p.update(p.service("a", p.ip(1), sticky, one, rest[0]))
		if m := seen(10); m[one] != 10 {
			t.Errorf("%v, want %s", m, one)
		}
		p.update(p.service("a", p.ip(1), sticky, rest...))
		second := seen(20)
		if len(second) != 1 || second[one] != 0 {
			t.Errorf("after its endpoint is gone: %v", second)
		}
		p.update(p.service("a", p.ip(1), nil, all...))
		if m := seen(100); len(m) != 3 {
			t.Errorf("without affinity %v", m)
		}
	})
}

// Established connections live on whatever happens to the rules.
func TestConnectionsStay(t *testing.T) {
	families(t, func(t *testing.T, p *testPlane) {
		vip := netip.AddrPortFrom(netip.MustParseAddr(p.ip(1)), 80)
		p.update(p.service("a", p.ip(1), p.nodePort(true), "pod1", "pod2"))
		var conns []net.Conn
		for _, from := range []string{"pod3", "node", "outside"} {
			for _, to := range []netip.AddrPort{vip, netip.AddrPortFrom(p.addr("node"), 30080)} {
				c, err := p.dial(from, "tcp", to, patience)
				p.must(err)
				defer c.Close()
				conns = append(conns, c)
			}
		}
		names := make([]string, len(conns))
		all := func(when string) {
			t.Helper()
			for i, c := range conns {
				name, _, err := exchange(c, patience)
				if err != nil || names[i] != "" && names[i] != name {
					t.Errorf("%s: connection %d: %s, before %s: %v", when, i, name, names[i], err)
				}
				names[i] = name
			}
		}
		all("at first")
		flush := func() {
			p.must(netns.Do(p.path("node"), func() error {
				out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput()
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			}))
		}
		p.update(p.service("a", p.ip(1), p.nodePort(true), "pod3"))
		all("the endpoints are gone")
		p.update(core.Input{Name: types.NamespacedName{Namespace: "ns", Name: "a"}})
		all("the Service is gone")
		p.update(p.service("a", p.ip(1), p.nodePort(true), "pod1", "pod2"))
		p.must(p.nft.Sync(p.content(p.state)))
		all("compared")
		// A new process takes over.
		p.open()
		p.state = core.New(p.v6, labNode(p.v6))
		p.state.Update([]core.Input{p.service("a", p.ip(1), p.nodePort(true), "pod1", "pod2")})
		p.must(p.nft.Sync(p.content(p.state)))
		all("restarted")
		// Until the table is back, nothing may be sent: the kernel answers with a reset what it cannot translate. An
		// acknowledgement that is delayed would be.
		for _, c := range conns {
			raw, err := c.(*net.TCPConn).SyscallConn()
			p.must(err)
			p.must(raw.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
			}))
		}
		flush()
		p.must(p.nft.Sync(p.content(p.state)))
		all("flushed")
		if _, _, err := p.reach("outside", "tcp", vip, patience); err != nil {
			t.Errorf("a new connection: %v", err)
		}
	})
}

// The kernel's table follows random changes: after them it has what a fresh computation has. CAROB_CHANGES sets how
// many.
func TestKernelFollows(t *testing.T) {
	p := newPlane(t, os.Getenv("CAROB_TEST_V6") != "")
	r := rand.New(rand.NewPCG(7, 7))
	names := []string{"pod1", "pod2", "pod3", "remote", "node"}
	changes := 300
	if text := os.Getenv("CAROB_CHANGES"); text != "" {
		var err error
		changes, err = strconv.Atoi(text)
		p.must(err)
	}
	for range changes {
		var in []core.Input
		for range 1 + r.IntN(3) {
			i := r.IntN(6)
			change := []func(*corev1.Service){nil, policyLocal, p.nodePort(false), p.nodePort(true),
				p.nodePort(true, p.addr("outside").String()+"/32", "10.0.0.0/8")}[r.IntN(5)]
			some := slices.Clone(names)
			r.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
			one := p.service(fmt.Sprint("s", i), p.ip(1+i), change, some[:r.IntN(len(some)+1)]...)
			if r.IntN(6) == 0 {
				one.Service = nil
			}
			if r.IntN(3) == 0 && one.Service != nil {
				one.Service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			}
			if !slices.ContainsFunc(in, func(have core.Input) bool { return have.Name == one.Name }) {
				in = append(in, one)
			}
		}
		p.update(in...)
	}
	counts := p.kernelElements()
	want := map[string]int{}
	for e := range p.elements(p.state, p.state.Classes()) {
		want[e.Set]++
	}
	for _, s := range p.sets() {
		if !s.Dynamic && counts[s.Name] != want[s.Name] {
			t.Errorf("%s has %d elements, want %d", s.Name, counts[s.Name], want[s.Name])
		}
	}
	for i := range 6 {
		p.check("pod1", "tcp", netip.AddrPortFrom(netip.MustParseAddr(p.ip(1+i)), 80))
	}
}
