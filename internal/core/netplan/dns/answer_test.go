package dns_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/netplan/dns"
)

func service(name, namespace, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, Ports: ports}}
}

func port(name string, protocol corev1.Protocol, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: protocol, Port: number}
}

func slice(name, of, namespace string, ports []discoveryv1.EndpointPort,
	endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace,
		Labels: map[string]string{discoveryv1.LabelServiceName: of}}, Ports: ports, Endpoints: endpoints}
}

func endpoint(ip, hostname string, ready *bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
	if hostname != "" {
		e.Hostname = &hostname
	}
	return e
}

// cluster returns the zone with the names of the transcript.
func cluster() *dns.Zone {
	z := dns.NewZone()
	z.Serial = 7
	for _, n := range []string{"default", "kube-system", "shop"} {
		z.SetNamespace(n)
	}
	z.SetService(service("kubernetes", "default", "10.96.0.1", port("https", "TCP", 443)))
	z.SetService(service("kube-dns", "kube-system", "10.96.0.10", port("dns", "UDP", 53), port("dns-tcp", "TCP", 53)))
	dual := service("dual", "shop", "10.96.0.20", port("http", "TCP", 80), port("", "UDP", 81))
	dual.Spec.ClusterIPs = []string{"10.96.0.20", "fd00:96::20"}
	z.SetService(dual)
	z.SetService(service("db", "shop", "None", port("sql", "TCP", 5432)))
	http := []discoveryv1.EndpointPort{{Name: new("sql"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(15432))}}
	z.SetSlice(nil, slice("db-1", "db", "shop", http, endpoint("10.88.0.5", "db-0", new(true)),
		endpoint("10.88.0.6", "", nil), endpoint("10.88.0.7", "db-2", new(false))))
	z.SetSlice(nil, slice("db-2", "db", "shop", nil, endpoint("10.88.0.8", "", nil), endpoint("10.88.0.5", "db-0", nil)))
	z.SetSlice(nil, slice("db-3", "db", "shop", http, endpoint("fd00::5", "", nil), endpoint("fd00:1::", "", nil)))
	z.SetService(service("idle", "shop", "None", port("x", "TCP", 1)))
	alias := service("alias", "shop", "")
	alias.Spec.Type, alias.Spec.ExternalName = corev1.ServiceTypeExternalName, "foo.Example.com"
	z.SetService(alias)
	literal := service("literal", "shop", "")
	literal.Spec.Type, literal.Spec.ExternalName = corev1.ServiceTypeExternalName, "192.0.2.1"
	z.SetService(literal)
	z.ChangePod(nil, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.88.0.9"}}}})
	return z
}

func config(t testing.TB, text string) *dns.Config {
	t.Helper()
	c, err := dns.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// query packs a question like a client, and unpacks the answer with another implementation.
func query(t testing.TB, z *dns.Zone, k *dns.Kubernetes, name string, typ uint16, udp uint16) (*mdns.Msg, dns.Result) {
	t.Helper()
	m := new(mdns.Msg).SetQuestion(name, typ)
	if udp > 0 {
		m.SetEdns0(udp, true)
	}
	wire, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var q dns.Query
	if verdict, rcode := q.Parse(wire); verdict != dns.Accept {
		t.Fatalf("%s: verdict %d, %d", name, verdict, rcode)
	}
	var b dns.Builder
	b.Begin(nil, &q, true)
	r := z.Answer(&q, k, &dns.Live{Synced: true, Own: []netip.Addr{netip.MustParseAddr("10.88.0.1")}}, &b)
	answer := new(mdns.Msg)
	if err := answer.Unpack(b.End(r.Rcode, true, false)); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if answer.Id != m.Id || !answer.Response || answer.Question[0] != m.Question[0] {
		t.Errorf("%s: header %+v", name, answer.MsgHdr)
	}
	return answer, r
}

// short is an answer on one line.
func short(m *mdns.Msg, r dns.Result) string {
	if r.Outcome == dns.Next {
		return "next"
	}
	if r.Outcome == dns.Alias {
		return "alias " + dns.Text(r.Target)
	}
	var out []string
	for i, list := range [][]mdns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range list {
			if rr.Header().Rrtype == mdns.TypeOPT {
				continue
			}
			text := strings.Fields(rr.String())
			if rr.Header().Rrtype == mdns.TypeSOA {
				out = append(out, "SOA "+text[0])
				continue
			}
			line := strings.Join(text[3:], " ")
			if i == 2 {
				line = "+" + text[0] + " " + line
			}
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return strings.TrimSpace(mdns.RcodeToString[m.Rcode] + " " + strings.Join(out, ", "))
}

// TestAnswers is the transcript of N4.1 to N4.24: the queries, and the answers of CoreDNS.
func TestAnswers(t *testing.T) {
	z := cluster()
	k := config(t, dns.DefaultCorefile("cluster.local")).Servers[0].Kubernetes
	const no, none = "NXDOMAIN SOA cluster.local.", "NOERROR SOA cluster.local."
	for _, c := range []struct{ name, typ, want string }{
		{"dns-version.cluster.local.", "TXT", `NOERROR TXT "1.1.0"`},
		{"kubernetes.default.svc.cluster.local.", "A", "NOERROR A 10.96.0.1"},
		{"KuberNetes.Default.SVC.cluster.LOCAL.", "A", "NOERROR A 10.96.0.1"},
		{"kubernetes.default.svc.cluster.local.", "AAAA", none},
		{"kubernetes.default.svc.cluster.local.", "MX", none},
		{"kubernetes.default.svc.cluster.local.", "TXT", none},
		{"kubernetes.default.svc.cluster.local.", "CNAME", none},
		{"kubernetes.default.svc.cluster.local.", "ANY", none},
		{"kubernetes.default.svc.cluster.local.", "HTTPS", none},
		{"dual.shop.svc.cluster.local.", "A", "NOERROR A 10.96.0.20"},
		{"dual.shop.svc.cluster.local.", "AAAA", "NOERROR AAAA fd00:96::20"},
		{"_https._tcp.kubernetes.default.svc.cluster.local.", "SRV",
			"NOERROR +kubernetes.default.svc.cluster.local. A 10.96.0.1, SRV 0 100 443 kubernetes.default.svc.cluster.local."},
		{"_HTTPS._TCP.kubernetes.default.svc.cluster.local.", "A", "NOERROR A 10.96.0.1"},
		{"_https._udp.kubernetes.default.svc.cluster.local.", "SRV", no},
		{"_http._tcp.kubernetes.default.svc.cluster.local.", "A", no},
		{"dual.shop.svc.cluster.local.", "SRV", "NOERROR +dual.shop.svc.cluster.local. A 10.96.0.20, " +
			"+dual.shop.svc.cluster.local. AAAA fd00:96::20, SRV 0 25 80 dual.shop.svc.cluster.local., " +
			"SRV 0 25 81 dual.shop.svc.cluster.local."},
		{"1.0.96.10.in-addr.arpa.", "PTR", "NOERROR PTR kubernetes.default.svc.cluster.local."},
		{"0.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa.", "PTR",
			"NOERROR PTR dual.shop.svc.cluster.local."},
		{"01.0.96.10.in-addr.arpa.", "PTR", "next"},
		{"256.0.96.10.in-addr.arpa.", "PTR", "next"},
		{"9.9.96.10.in-addr.arpa.", "PTR", "next"},
		{"1.0.96.10.in-addr.arpa.", "A", "next"},
		{"96.10.in-addr.arpa.", "PTR", "next"},
		{"5.0.88.10.in-addr.arpa.", "PTR", "NOERROR PTR db-0.db.shop.svc.cluster.local."},
		{"6.0.88.10.in-addr.arpa.", "PTR", "NOERROR PTR 10-88-0-6.db.shop.svc.cluster.local."},
		{"7.0.88.10.in-addr.arpa.", "PTR", "next"}, // not ready
		{"db.shop.svc.cluster.local.", "A", "NOERROR A 10.88.0.5, A 10.88.0.6, A 10.88.0.8"},
		{"db.shop.svc.cluster.local.", "AAAA", "NOERROR AAAA fd00:1::, AAAA fd00::5"},
		{"db-0.db.shop.svc.cluster.local.", "A", "NOERROR A 10.88.0.5"},
		{"10-88-0-6.db.shop.svc.cluster.local.", "A", "NOERROR A 10.88.0.6"},
		{"10-88-0-6.db.shop.svc.cluster.local.", "AAAA", none},
		{"fd00-1--0.db.shop.svc.cluster.local.", "AAAA", "NOERROR AAAA fd00:1::"},
		{"db-2.db.shop.svc.cluster.local.", "A", no},
		{"_sql._tcp.db-0.db.shop.svc.cluster.local.", "SRV", no},
		{"_sql._tcp.db.shop.svc.cluster.local.", "SRV", "NOERROR +10-88-0-6.db.shop.svc.cluster.local. A 10.88.0.6, " +
			"+db-0.db.shop.svc.cluster.local. A 10.88.0.5, +fd00--5.db.shop.svc.cluster.local. AAAA fd00::5, " +
			"+fd00-1--0.db.shop.svc.cluster.local. AAAA fd00:1::, " +
			"SRV 0 25 15432 10-88-0-6.db.shop.svc.cluster.local., SRV 0 25 15432 db-0.db.shop.svc.cluster.local., " +
			"SRV 0 25 15432 fd00--5.db.shop.svc.cluster.local., SRV 0 25 15432 fd00-1--0.db.shop.svc.cluster.local."},
		{"_sql._tcp.db.shop.svc.cluster.local.", "A", "NOERROR A 10.88.0.5, A 10.88.0.6"},
		{"10-88-0-8.db.shop.svc.cluster.local.", "SRV", none}, // an address without ports
		{"idle.shop.svc.cluster.local.", "A", no},
		{"alias.shop.svc.cluster.local.", "A", "alias foo.example.com."},
		{"alias.shop.svc.cluster.local.", "AAAA", "alias foo.example.com."},
		{"alias.shop.svc.cluster.local.", "CNAME", "NOERROR CNAME foo.example.com."},
		{"alias.shop.svc.cluster.local.", "SRV", none},
		{"x.alias.shop.svc.cluster.local.", "A", no},
		{"literal.shop.svc.cluster.local.", "A", no},
		{"10-1-2-3.shop.pod.cluster.local.", "A", "NOERROR A 10.1.2.3"},
		{"10-1-2-3.shop.pod.cluster.local.", "AAAA", none},
		{"fd00--1.shop.pod.cluster.local.", "AAAA", "NOERROR AAAA fd00::1"},
		{"10-1-2-300.shop.pod.cluster.local.", "A", no},
		{"x.shop.pod.cluster.local.", "A", no},
		{"10-1-2-3.nowhere.pod.cluster.local.", "A", no},
		{"cluster.local.", "A", none},
		{"svc.cluster.local.", "A", none},
		{"pod.cluster.local.", "A", none},
		{"shop.svc.cluster.local.", "A", none},
		{"shop.pod.cluster.local.", "A", none},
		{"nowhere.svc.cluster.local.", "A", no},
		{"x.shop.svc.cluster.local.", "A", no},
		{"x.shop.svc.cluster.local.", "SOA", no},
		{"x.y.z.db.shop.svc.cluster.local.", "A", no},
		{"example.com.cluster.local.", "A", no},
		{"cluster.local.", "SOA", "NOERROR SOA cluster.local."},
		{"cluster.local.", "NS", "NOERROR +kube-dns.kube-system.svc.cluster.local. A 10.96.0.10, " +
			"NS kube-dns.kube-system.svc.cluster.local."},
		{"ns.dns.cluster.local.", "A", "NOERROR A 10.96.0.10"},
		{"cluster.local.", "AXFR", "REFUSED"},
		{"example.com.", "A", "next"},
		{"xcluster.local.", "A", "next"},
		{"local.", "A", "next"},
		{".", "NS", "next"},
	} {
		got := short(query(t, z, k, c.name, mdns.StringToType[c.typ], 4096))
		if got != c.want {
			t.Errorf("%s %s:\n got %s\nwant %s", c.typ, c.name, got, c.want)
		}
	}
}

// N4.15, N4.16, N4.18, N4.20, N4.22, N4.23, N4.25: effects of the configuration and the state.
func TestVariants(t *testing.T) {
	z := cluster()
	answer := func(corefile, name, typ string) string {
		t.Helper()
		k := config(t, corefile).Servers[0].Kubernetes
		return short(query(t, z, k, name, mdns.StringToType[typ], 4096))
	}
	for _, c := range []struct{ options, name, typ, want string }{
		{"pods verified", "10-88-0-9.shop.pod.cluster.local.", "A", "NOERROR A 10.88.0.9"},
		{"pods verified", "10-88-0-9.default.pod.cluster.local.", "A", "NXDOMAIN SOA cluster.local."},
		{"pods disabled", "10-88-0-9.shop.pod.cluster.local.", "A", "NXDOMAIN SOA cluster.local."},
		{"namespaces default", "dual.shop.svc.cluster.local.", "A", "NXDOMAIN SOA cluster.local."},
		{"ignore empty_service", "dual.shop.svc.cluster.local.", "A", "NXDOMAIN SOA cluster.local."},
		{"fallthrough", "x.shop.svc.cluster.local.", "A", "next"},
		{"ttl 0", "9.9.9.9.in-addr.arpa.", "PTR", "next"},
	} {
		got := answer("cluster.local {\nkubernetes {\n"+c.options+"\n}\n}", c.name, c.typ)
		if got != c.want {
			t.Errorf("%s: %s: got %s, want %s", c.options, c.name, got, c.want)
		}
	}
	if got := answer(".:53 {\nkubernetes cluster.local in-addr.arpa\n}", "9.9.96.10.in-addr.arpa.",
		"PTR"); got != "NXDOMAIN SOA in-addr.arpa." {
		t.Errorf("a reverse name without fallthrough: %s", got)
	}
	k := config(t, "cluster.local {\nkubernetes {\nttl 3600\n}\n}").Servers[0].Kubernetes
	m, _ := query(t, z, k, "x.shop.svc.Cluster.local.", mdns.TypeA, 0)
	soa := m.Ns[0].(*mdns.SOA)
	if soa.Hdr.Ttl != 300 || soa.Minttl != 3600 || soa.Serial != 7 || soa.Ns != "ns.dns.cluster.local." ||
		soa.Mbox != "hostmaster.cluster.local." || soa.Refresh != 7200 || soa.Retry != 1800 || soa.Expire != 86400 ||
		soa.Hdr.Name != "Cluster.local." {
		t.Errorf("SOA %v", soa)
	}
	var q dns.Query
	wire, _ := new(mdns.Msg).SetQuestion("x.shop.svc.cluster.local.", mdns.TypeA).Pack()
	q.Parse(wire)
	var b dns.Builder
	b.Begin(nil, &q, true)
	if r := z.Answer(&q, k, &dns.Live{}, &b); r.Rcode != dns.ServerFailure {
		t.Errorf("before the zone is complete: %v", r)
	}
}

// Removed objects leave no records.
func TestChanges(t *testing.T) {
	z := cluster()
	k := config(t, dns.DefaultCorefile("cluster.local")).Servers[0].Kubernetes
	is := func(what, name, typ, want string) {
		t.Helper()
		if got := short(query(t, z, k, name, mdns.StringToType[typ], 4096)); got != want {
			t.Errorf("%s: %s: got %s, want %s", what, name, got, want)
		}
	}
	const no = "NXDOMAIN SOA cluster.local."
	is("before", "db.shop.svc.cluster.local.", "A", "NOERROR A 10.88.0.5, A 10.88.0.6, A 10.88.0.8")
	one := slice("db-1", "db", "shop", nil, endpoint("10.88.0.9", "", nil))
	z.SetSlice(one, one)
	is("a slice has changed", "db.shop.svc.cluster.local.", "A", "NOERROR A 10.88.0.5, A 10.88.0.8, A 10.88.0.9")
	is("a slice has changed", "6.0.88.10.in-addr.arpa.", "PTR", "next")
	moved := slice("db-1", "idle", "shop", nil, endpoint("10.88.0.9", "", nil))
	z.SetSlice(one, moved)
	is("a slice has another Service", "db.shop.svc.cluster.local.", "A", "NOERROR A 10.88.0.5, A 10.88.0.8")
	is("a slice has another Service", "idle.shop.svc.cluster.local.", "A", "NOERROR A 10.88.0.9")
	z.RemoveSlice(moved)
	z.RemoveSlice(moved) // twice
	is("a slice is gone", "idle.shop.svc.cluster.local.", "A", no)
	z.RemoveService("db", "shop")
	z.RemoveService("db", "shop")
	is("a Service is gone", "db.shop.svc.cluster.local.", "A", no)
	is("a Service is gone", "8.0.88.10.in-addr.arpa.", "PTR", "next")
	z.SetService(service("db", "shop", "None"))
	is("it is back before its slices", "db.shop.svc.cluster.local.", "A", "NOERROR A 10.88.0.5, A 10.88.0.8")
	other := service("kubernetes", "default", "10.96.0.99")
	z.SetService(other)
	is("another cluster IP", "1.0.96.10.in-addr.arpa.", "PTR", "next")
	is("another cluster IP", "99.0.96.10.in-addr.arpa.", "PTR", "NOERROR PTR kubernetes.default.svc.cluster.local.")
	alias := service("kubernetes", "default", "")
	alias.Spec.Type, alias.Spec.ExternalName = corev1.ServiceTypeExternalName, "a.example"
	z.SetService(alias)
	is("of another type", "kubernetes.default.svc.cluster.local.", "A", "alias a.example.")
	is("of another type", "99.0.96.10.in-addr.arpa.", "PTR", "next")
	z.RemoveNamespace("shop")
	is("a namespace is gone", "dual.shop.svc.cluster.local.", "A", no)
}

// N4.27: an answer that does not fit is truncated with the bit TC; the remaining records are
// complete.
func TestTruncation(t *testing.T) {
	z := dns.NewZone()
	z.SetNamespace("n")
	z.SetService(service("big", "n", "None"))
	var list []discoveryv1.Endpoint
	for i := range 500 {
		list = append(list, endpoint(fmt.Sprintf("10.1.%d.%d", i/200, i%200+1), "", nil))
	}
	z.SetSlice(nil, slice("s", "big", "n", []discoveryv1.EndpointPort{{Name: new("p"), Port: new(int32(1)),
		Protocol: new(corev1.ProtocolTCP)}}, list...))
	k := config(t, dns.DefaultCorefile("cluster.local")).Servers[0].Kubernetes
	for _, c := range []struct {
		typ, size uint16
		most      int
	}{{mdns.TypeA, 0, 512}, {mdns.TypeA, 1232, 1232}, {mdns.TypeA, 60000, 4096}, {mdns.TypeSRV, 0, 512}} {
		m, _ := query(t, z, k, "big.n.svc.cluster.local.", c.typ, c.size)
		m.Compress = true
		if !m.Truncated || len(m.Answer) == 0 || m.Len() > c.most {
			t.Errorf("%v: truncated %v, %d records, %d bytes", c, m.Truncated, len(m.Answer), m.Len())
		}
	}
	if m, _ := query(t, z, k, "10-1-0-1.big.n.svc.cluster.local.", mdns.TypeA, 0); m.Truncated || len(m.Answer) != 1 {
		t.Errorf("one endpoint: %v", m)
	}
}

// The cost of an answer is that of the ports and endpoints, not of their pairs: users can define thousands of both.
func TestManyPorts(t *testing.T) {
	z := dns.NewZone()
	z.SetNamespace("n")
	headless := service("big", "n", "None")
	z.SetService(headless)
	var ports []discoveryv1.EndpointPort
	proxied := service("proxied", "n", "10.96.0.7")
	for i := range int32(20_000) {
		p := discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Port: new(i + 1),
			Protocol: new(corev1.ProtocolTCP)}
		ports = append(ports, p)
		proxied.Spec.Ports = append(proxied.Spec.Ports, corev1.ServicePort{Name: *p.Name, Port: *p.Port,
			Protocol: corev1.ProtocolTCP})
	}
	z.SetService(proxied)
	var list []discoveryv1.Endpoint
	for i := range 1000 {
		list = append(list, endpoint(fmt.Sprintf("10.1.%d.%d", i/200, i%200+1), "same", nil))
	}
	z.SetSlice(nil, slice("s", "big", "n", ports, list...))
	k := config(t, dns.DefaultCorefile("cluster.local")).Servers[0].Kubernetes
	for _, name := range []string{"big.n.svc.cluster.local.", "_p7._tcp.big.n.svc.cluster.local.",
		"same.big.n.svc.cluster.local.", "proxied.n.svc.cluster.local."} {
		for _, typ := range []uint16{mdns.TypeSRV, mdns.TypeA} {
			allocs := testing.AllocsPerRun(1, func() {
				if m, _ := query(t, z, k, name, typ, 0); len(m.Answer) == 0 {
					t.Errorf("%s: no answer", name)
				}
			})
			if allocs > 50_000 { // there are 20,000,000 pairs
				t.Errorf("%s %s: %v allocations", name, mdns.TypeToString[typ], allocs)
			}
		}
	}
	m, _ := query(t, z, k, "_p7._tcp.big.n.svc.cluster.local.", mdns.TypeSRV, 0)
	if srv, ok := m.Answer[0].(*mdns.SRV); !ok || len(m.Answer) != 1 || srv.Port != 8 || len(m.Extra) == 0 {
		t.Errorf("one port of endpoints with one name: %v", m)
	}
}
