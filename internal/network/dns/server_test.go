package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/base/testwait"
	core "carob/internal/core/netplan/dns"
)

// upstream is another server, as far as tests need one. Its zero value answers every A question.
type upstream struct {
	mu      sync.Mutex
	queries []string
	answer  func(to core.Upstream, m *dns.Msg) (*dns.Msg, error)
}

func (u *upstream) Exchange(_ context.Context, to core.Upstream, m *dns.Msg, _ bool) (*dns.Msg, error) {
	u.mu.Lock()
	u.queries = append(u.queries, m.Question[0].Name+" "+to.Addr.String())
	answer := u.answer
	u.mu.Unlock()
	if answer != nil {
		return answer(to, m)
	}
	return address(m, "192.0.2.1", 30), nil
}

func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := 0
	for _, a := range u.queries {
		if !strings.HasPrefix(a, ". ") {
			n++
		}
	}
	return n
}

func (u *upstream) set(f func(to core.Upstream, m *dns.Msg) (*dns.Msg, error)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answer = f
}

func address(m *dns.Msg, ip string, ttl uint32) *dns.Msg {
	r := new(dns.Msg).SetReply(m)
	r.RecursionAvailable = true
	r.Answer = []dns.RR{&dns.A{A: net.ParseIP(ip),
		Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl}}}
	return r
}

// forwarding is a Corefile without loop detection, which would send queries itself.
const forwarding = `.:53 {
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
    }
    forward . 192.0.2.53
    cache 30 {
        %s
    }
}`

// clock is the time of a server in a test.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// made is a server with a zone of one Service, without sockets.
func made(t testing.TB, corefile string) (*Server, *upstream, *clock) {
	t.Helper()
	u, c := &upstream{}, &clock{t: time.Unix(1_700_000_000, 0)}
	s := newServer(Config{Domain: "cluster.local", ResolvConf: "/nonexistent",
		Listen: []netip.Addr{netip.MustParseAddr("10.88.0.1")}}, u, c.now)
	t.Cleanup(func() { s.blocks.Load().stop() })
	if err := s.configure(corefile); err != nil {
		t.Fatal(err)
	}
	for range watched {
		s.zone.listed()
	}
	s.zone.change(nil, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})
	s.zone.change(nil, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.7"}})
	s.zone.change(nil, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "out"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "Foo.example.com"}})
	s.zone.change(nil, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "in"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "web.ns.svc.cluster.local"}})
	s.zone.change(nil, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "round"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "trip.ns.svc.cluster.local"}})
	s.zone.change(nil, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "trip"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "round.ns.svc.cluster.local"}})
	return s, u, c
}

var pod = netip.MustParseAddr("10.88.0.9")

// query sends a query as a client does, over UDP.
func query(t testing.TB, s *Server, name string, typ uint16, change ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, typ)
	for _, f := range change {
		f(m)
	}
	wire, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	answer, later := s.handle(wire, make([]byte, 0, core.MaxMessage), pod, true)
	if later != nil {
		answer = later(t.Context())
	}
	r := new(dns.Msg)
	if err := r.Unpack(answer); err != nil {
		t.Fatalf("%s: %v: %x", name, err, answer)
	}
	if r.Id != m.Id || !r.Response || r.RecursionDesired != m.RecursionDesired || len(r.Question) != 1 ||
		r.Question[0] != m.Question[0] {
		t.Errorf("%s: %v", name, r)
	}
	if (m.IsEdns0() != nil) != (r.IsEdns0() != nil) {
		t.Errorf("%s: EDNS of the answer: %v", name, r.IsEdns0())
	}
	return r
}

// line is an answer on one line: the code, then the records without their class.
func line(m *dns.Msg) string {
	out := []string{dns.RcodeToString[m.Rcode]}
	for _, rr := range m.Answer {
		f := strings.Fields(rr.String())
		out = append(out, f[0], f[1], strings.Join(f[3:], " "))
	}
	return strings.Join(out, " ")
}

func want(t *testing.T, what string, m *dns.Msg, text string) {
	t.Helper()
	if got := line(m); got != text {
		t.Errorf("%s: got %s, want %s", what, got, text)
	}
}

// Names of the cluster are answered from memory, all others by other servers, once for all clients.
func TestAnswers(t *testing.T) {
	s, u, c := made(t, fmt.Sprintf(forwarding, ""))
	want(t, "a Service", query(t, s, "web.ns.svc.cluster.local.", dns.TypeA),
		"NOERROR web.ns.svc.cluster.local. 5 A 10.96.0.7")
	for _, name := range []string{"x.ns.svc.cluster.local.", "example.com.ns.svc.cluster.local.",
		"example.com.svc.cluster.local.", "example.com.cluster.local."} { // N4.28: a walk through the search list
		want(t, "a name that is not there", query(t, s, name, dns.TypeA), "NXDOMAIN")
	}
	if u.count() != 0 {
		t.Fatalf("forwarded: %v", u.queries)
	}
	want(t, "another name", query(t, s, "exAMPle.com.", dns.TypeA), "NOERROR exAMPle.com. 30 A 192.0.2.1")
	c.add(10 * time.Second)
	want(t, "again", query(t, s, "example.COM.", dns.TypeA), "NOERROR example.COM. 20 A 192.0.2.1")
	edns := func(m *dns.Msg) { m.SetEdns0(1232, false) }
	want(t, "with EDNS", query(t, s, "example.com.", dns.TypeA, edns), "NOERROR example.com. 20 A 192.0.2.1")
	if u.count() != 1 {
		t.Errorf("asked %v", u.queries)
	}
	do := func(m *dns.Msg) { m.SetEdns0(1232, true) }
	query(t, s, "example.com.", dns.TypeA, do)
	if u.count() != 2 {
		t.Errorf("a client that wants signatures got an answer without: %v", u.queries)
	}
	c.add(21 * time.Second)
	want(t, "expired", query(t, s, "example.com.", dns.TypeA), "NOERROR example.com. 30 A 192.0.2.1")
	want(t, "reverse", query(t, s, "7.0.96.10.in-addr.arpa.", dns.TypePTR),
		"NOERROR 7.0.96.10.in-addr.arpa. 5 PTR web.ns.svc.cluster.local.")
	n := u.count()
	query(t, s, "1.2.0.192.in-addr.arpa.", dns.TypePTR)
	if u.count() != n+1 {
		t.Error("an unknown reverse name is not forwarded (N4.22)")
	}
	// N4.9, N4.21: aliases.
	want(t, "an alias", query(t, s, "Out.ns.svc.cluster.local.", dns.TypeA),
		"NOERROR Out.ns.svc.cluster.local. 5 CNAME foo.example.com. foo.example.com. 30 A 192.0.2.1")
	want(t, "an alias in the cluster", query(t, s, "in.ns.svc.cluster.local.", dns.TypeA),
		"NOERROR in.ns.svc.cluster.local. 5 CNAME web.ns.svc.cluster.local. web.ns.svc.cluster.local. 5 A 10.96.0.7")
	if m := query(t, s, "round.ns.svc.cluster.local.", dns.TypeA); m.Rcode != dns.RcodeServerFailure ||
		len(m.Answer) > mostAliases+1 {
		t.Errorf("aliases in a circle: %v", m)
	}
}

// What is not a question, or none for us.
func TestRejects(t *testing.T) {
	s, u, _ := made(t, "cluster.local {\nkubernetes\n}")
	for _, c := range []struct {
		what   string
		change func(*dns.Msg)
		rcode  int
	}{
		{"another class", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassHESIOD }, dns.RcodeRefused},
		{"a zone of nobody", func(m *dns.Msg) { m.Question[0].Name = "example.com." }, dns.RcodeRefused},
		{"a transfer", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAXFR }, dns.RcodeRefused},
	} {
		if m := query(t, s, "web.ns.svc.cluster.local.", dns.TypeA, c.change); m.Rcode != c.rcode {
			t.Errorf("%s: %v", c.what, m)
		}
	}
	version := func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }
	if m := query(t, s, "web.ns.svc.cluster.local.", dns.TypeA, version); m.Rcode != dns.RcodeBadVers {
		t.Errorf("EDNS version 1: %v", m)
	}
	good, _ := new(dns.Msg).SetQuestion("web.ns.svc.cluster.local.", dns.TypeA).Pack()
	for what, change := range map[string]func([]byte) []byte{
		"a response":    func(b []byte) []byte { b[2] |= 0x80; return b },
		"half a header": func(b []byte) []byte { return b[:7] },
		"nothing":       func(b []byte) []byte { return nil },
	} {
		answer, later := s.handle(change(append([]byte(nil), good...)), nil, pod, true)
		if answer != nil || later != nil {
			t.Errorf("%s is answered", what)
		}
	}
	for what, change := range map[string]func([]byte) []byte{
		"two questions":        func(b []byte) []byte { b[5] = 2; return b },
		"no question":          func(b []byte) []byte { b[5] = 0; return b },
		"half a name":          func(b []byte) []byte { return b[:20] },
		"a pointer for a name": func(b []byte) []byte { b[12], b[13] = 0xc0, 12; return b },
		"an update":            func(b []byte) []byte { b[2] |= dns.OpcodeUpdate << 3; return b },
	} {
		answer, _ := s.handle(change(append([]byte(nil), good...)), nil, pod, true)
		var m dns.Msg
		rcode := dns.RcodeFormatError
		if what == "an update" {
			rcode = dns.RcodeNotImplemented
		}
		if err := m.Unpack(answer); err != nil || m.Rcode != rcode {
			t.Errorf("%s: %v, %v", what, m.Rcode, err)
		}
	}
	if u.count() != 0 {
		t.Error("something was forwarded")
	}
}

// started is a server with sockets on a loopback address of its own, and a fake API.
func started(t *testing.T, api kubernetes.Interface, at string) (*Server, netip.AddrPort) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("port 53 needs root")
	}
	s, err := New(t.Context(), Config{Client: api, Listen: []netip.Addr{netip.MustParseAddr(at)},
		Domain:     "cluster.local",
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Node: "n", ResolvConf: "/nonexistent"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, s.Addresses()[0]
}

// Over real sockets: objects of the API are answered over UDP and TCP, the Service points here until it has a selector,
// and a wrong Corefile changes nothing.
func TestServesTheAPIOverRealSockets(t *testing.T) {
	api := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}})
	_, at := started(t, api, "127.53.0.1")
	services, slices := api.CoreV1().Services("kube-system"), api.DiscoveryV1().EndpointSlices("kube-system")
	for _, kind := range []string{"udp", "tcp"} {
		c := &dns.Client{Net: kind}
		testwait.For(t, "kube-dns over "+kind, func() bool {
			query := new(dns.Msg).SetQuestion("kube-dns.kube-system.svc.cluster.local.", dns.TypeA)
			m, _, err := c.Exchange(query, at.String())
			return err == nil && line(m) == "NOERROR kube-dns.kube-system.svc.cluster.local. 5 A 10.96.0.10"
		})
	}
	leads := func() bool {
		s, err := slices.Get(t.Context(), sliceName, metav1.GetOptions{})
		return err == nil && len(s.Endpoints) == 1 && s.Endpoints[0].Addresses[0] == "127.53.0.1" &&
			len(s.Ports) == 2 &&
			*s.Ports[0].Port == int32(at.Port()) && s.Labels[discoveryv1.LabelServiceName] == "kube-dns"
	}
	testwait.For(t, "a slice leads here", leads)
	s, err := services.Get(t.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil || len(s.Spec.Selector) != 0 || s.Spec.ClusterIP != "10.96.0.10" || len(s.Spec.Ports) != 2 {
		t.Fatalf("the Service: %+v, %v", s, err)
	}
	// A user's own DNS takes over, and goes again.
	s.Spec.Selector = map[string]string{"k8s-app": "kube-dns"}
	if _, err := services.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the slice goes", func() bool {
		_, err := slices.Get(t.Context(), sliceName, metav1.GetOptions{})
		return err != nil
	})
	s.Spec.Selector = nil
	if _, err := services.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the slice is back", leads)
	// Another client deletes both.
	for _, err := range []error{slices.Delete(t.Context(), sliceName, metav1.DeleteOptions{}),
		services.Delete(t.Context(), "kube-dns", metav1.DeleteOptions{})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	testwait.For(t, "both are back", func() bool {
		_, err := services.Get(t.Context(), "kube-dns", metav1.GetOptions{})
		return err == nil && leads()
	})

	maps := api.CoreV1().ConfigMaps("kube-system")
	config := func(corefile string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns"},
			Data: map[string]string{"Corefile": corefile}}
	}
	const good = ".:53 {\nkubernetes cluster.local\nhosts {\n192.0.2.7 a.example\nfallthrough\n}\n}"
	if _, err := maps.Create(t.Context(), config(good), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	entry := func() bool {
		m, err := dns.Exchange(new(dns.Msg).SetQuestion("a.example.", dns.TypeA), at.String())
		return err == nil && line(m) == "NOERROR a.example. 3600 A 192.0.2.7"
	}
	testwait.For(t, "the Corefile works", entry)
	if _, err := maps.Update(t.Context(), config(".:53 {\nroute53 x\n}"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "an event of the invalid Corefile", func() bool {
		list, err := api.CoreV1().Events("kube-system").List(t.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 1 &&
			list.Items[0].Reason == "InvalidCorefile" && strings.Contains(list.Items[0].Message, `Corefile:2: carob's DNS does not support the directive "route53"`)
	})
	if !entry() {
		t.Error("the last good configuration does not hold")
	}
	if err := maps.Delete(t.Context(), "coredns", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "carob's own Corefile holds again", func() bool { return !entry() })
}

// A Service of one family that an earlier version made gets the address of the other one, and a slice for it leads
// here; neither is touched again.
func TestSecondFamily(t *testing.T) {
	api := fake.NewClientset()
	four, six := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")
	old := clusterService{client: api, clusterIP: []netip.Addr{four}, node: "n",
		at: []netip.AddrPort{netip.MustParseAddrPort("10.88.0.1:53")}}
	now := clusterService{client: api, clusterIP: []netip.Addr{four, six}, node: "n",
		at: append(old.at, netip.MustParseAddrPort("[fd00:88::1]:53"))}
	if err := old.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		api.ClearActions()
		if err := now.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, err := api.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
		if err != nil || !slices.Equal(s.Spec.ClusterIPs, []string{"10.96.0.10", "fd00:96::a"}) {
			t.Fatalf("the Service has %v, %v", s.Spec.ClusterIPs, err)
		}
		// The API server completes the families.
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		if _, err := api.CoreV1().Services("kube-system").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if list := api.Actions(); len(list) > 6 {
		t.Errorf("the second time: %v", list)
	}
	for name, want := range map[string]string{sliceName: "10.88.0.1", secondSliceName: "fd00:88::1"} {
		s, err := api.DiscoveryV1().EndpointSlices("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(s.Endpoints) != 1 || s.Endpoints[0].Addresses[0] != want {
			t.Errorf("slice %s: %v, %v", name, s, err)
		}
	}
}

// Each of the two slices is made again when it is removed.
func TestRemovedSlices(t *testing.T) {
	s, _, _ := made(t, fmt.Sprintf(forwarding, ""))
	k := &clusterService{wake: make(chan struct{}, 1)}
	s.cfg.Client = fake.NewClientset()
	slices := s.followers(t.Context(), k)[watched-1]
	for _, name := range []string{sliceName, secondSliceName} {
		slices.changed(&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: serviceNamespace, Name: name}}, nil)
		select {
		case <-k.wake:
		default:
			t.Errorf("nobody notices that %s is gone", name)
		}
	}
}

// Another process has port 53 on all addresses: a free port is taken, and the slice names it.
func TestPortIsTaken(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("port 53 needs root")
	}
	at := netip.MustParseAddr("127.53.0.2")
	other, err := net.Listen("tcp", "127.53.0.2:53")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	udp, tcp, err := listen(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	defer tcp.Close()
	a, b := udp.LocalAddr().(*net.UDPAddr).Port, tcp.Addr().(*net.TCPAddr).Port
	if a == 53 || a != b {
		t.Errorf("ports %d and %d", a, b)
	}
	if _, _, err := listen(t.Context(), netip.MustParseAddr("192.0.2.77")); err == nil ||
		!strings.Contains(err.Error(), "192.0.2.77") {
		t.Errorf("an address of somebody else: %v", err)
	}
}

// A neighbour that sends packets for the listener to this host gets no answer.
func TestSources(t *testing.T) {
	c := &clock{t: time.Unix(1, 0)}
	looks := 0
	s := &sources{pods: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16")}, now: c.now,
		list: func() ([]net.Addr, error) {
			looks++
			if looks > 1 {
				return nil, errors.New("no")
			}
			return []net.Addr{&net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}}, nil
		}}
	c.add(time.Hour)
	for ip, ok := range map[string]bool{"10.88.3.4": true, "127.0.0.1": true, "192.0.2.1": true, "192.0.2.2": false,
		"::1": true, "2001:db8::1": false} {
		if s.allowed(netip.MustParseAddr(ip)) != ok {
			t.Errorf("%s: %v", ip, !ok)
		}
	}
	if looks != 1 {
		t.Errorf("%d looks at the addresses within a second", looks)
	}
}
