package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func simple(i, endpoints int) Input {
	name := types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("s", i)}
	ip := fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)
	in := Input{Name: name, Service: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace,
		Name: name.Name}}}
	in.Service.Spec = corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip},
		Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}
	for first := 0; first < endpoints; first += 100 {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(name.Name, first)},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}}}
		for e := first; e < min(first+100, endpoints); e++ {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: new("here"),
				Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 88+i%100, e/200, 1+e%200)}})
		}
		in.Slices = append(in.Slices, s)
	}
	return in
}

// A change of one of 10,000 endpoints of a Service, or of one of 10,000 Services, changes a few
// elements.
func TestChangesAreSmall(t *testing.T) {
	s := New(false, Node{Name: "here"})
	big := simple(0, 10_000)
	s.Update([]Input{big})
	first := *big.Slices[0]
	first.Endpoints = first.Endpoints[1:] // all others come after it
	big.Slices[0] = &first
	c := s.Update([]Input{big})
	// The endpoint's element is removed, the last one takes its index, and the number of endpoints
	// changes.
	if len(c.Delete) > 5 || len(c.Add) > 3 {
		t.Errorf("%d deleted, %d added of 10,000 endpoints", len(c.Delete), len(c.Add))
	}
	var all []Input
	for i := range 10_000 {
		all = append(all, simple(i+1, 2))
	}
	s.Update(all)
	c = s.Update([]Input{simple(77, 3)})
	if len(c.Delete) > 2 || len(c.Add) > 4 {
		t.Errorf("%d deleted, %d added of 10,000 Services", len(c.Delete), len(c.Add))
	}
	if c := s.Update([]Input{simple(77, 3)}); !c.Empty() {
		t.Errorf("nothing changed: %+v", c)
	}
}

// Scaling a Service with few endpoints creates no chain, which would cost more than its elements.
func TestScalingMakesNoChains(t *testing.T) {
	s := New(false, Node{Name: "here"})
	for n := range commonClasses + 1 {
		if c := s.Update([]Input{simple(0, n)}); len(c.NewClasses)+len(c.OldClasses) > 0 {
			t.Errorf("%d endpoints: new %v, old %v", n, c.NewClasses, c.OldClasses)
		}
	}
	if c := s.Update([]Input{simple(0, commonClasses+1)}); len(c.NewClasses) != 1 {
		t.Errorf("many endpoints: new %v", c.NewClasses)
	}
}

// What one Service may have is bounded, however its ports multiply its endpoints, addresses, or source ranges: the
// ports up to the bound are served, and one text reports the others.
func TestEntriesAreBounded(t *testing.T) {
	many := func(change func(i *Input)) Input {
		in := simple(1, 1)
		in.Service.Spec.Ports = nil
		for p := range 20_000 {
			in.Service.Spec.Ports = append(in.Service.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p),
				Port: int32(p + 1), Protocol: corev1.ProtocolTCP})
		}
		change(&in)
		return in
	}
	of := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("198.51.%d.%d", i/256, i%256))
		}
		return list
	}
	for name, in := range map[string]Input{
		"endpoints": many(func(in *Input) {
			in.Slices = simple(1, 100).Slices
			s := in.Slices[0]
			s.Ports, s.Endpoints = nil, slices.Repeat(s.Endpoints, 10)
			for p := range 20_000 {
				s.Ports = append(s.Ports,
					discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", p)), Port: new(int32(8080))})
			}
		}),
		"external IPs": many(func(in *Input) { in.Service.Spec.ExternalIPs = of(20_000) }),
		"source ranges": many(func(in *Input) {
			in.Service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.9"}}
			for _, a := range of(20_000) {
				in.Service.Spec.LoadBalancerSourceRanges = append(in.Service.Spec.LoadBalancerSourceRanges, a+"/32")
			}
		}),
	} {
		s := New(false, Node{Name: "here"})
		c := s.Update([]Input{in})
		if len(c.Add) == 0 || len(c.Add) > 2*maxEntries {
			t.Errorf("%s: %d elements", name, len(c.Add))
		}
		if len(c.Problems) != 1 || !strings.Contains(c.Problems[0].Text, "and the ports behind it are not served") {
			t.Errorf("%s: %d problems", name, len(c.Problems))
		}
		first := Port{netip.MustParseAddr(in.Service.Spec.ClusterIP), TCP, 1}
		if _, served := s.services[in.Name].vips[first]; !served {
			t.Errorf("%s: the first port is not served", name)
		}
	}
	// A list of problems is bounded, too: each is an event.
	s := New(false, Node{Name: "here"})
	external := func(in *Input) { in.Service.Spec.ExternalIPs = []string{"192.0.2.7"} }
	first, second := many(external), many(external)
	second.Name.Name, second.Service.Name = "s2", "s2"
	second.Service.Spec.ClusterIP, second.Service.Spec.ClusterIPs = "10.96.9.9", []string{"10.96.9.9"}
	if c := s.Update([]Input{first, second}); len(c.Problems) != maxProblems+1 ||
		!strings.HasPrefix(c.Problems[maxProblems].Text, "and ") && !strings.HasPrefix(c.Problems[0].Text, "and ") {
		t.Errorf("%d problems, the last: %v", len(c.Problems), c.Problems[len(c.Problems)-1])
	}
}

// A Service that does not get an address or port is reported, with the Service that has it.
func TestTwoClaimants(t *testing.T) {
	node := Node{Name: "here", Own: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443")}}
	s := New(false, node)
	a, b, thief := simple(1, 1), simple(2, 1), simple(3, 1)
	a.Service.Spec.Ports[0].NodePort, b.Service.Spec.Ports[0].NodePort = 30080, 30080
	thief.Service.Spec.ExternalIPs = []string{a.Service.Spec.ClusterIP}
	c := s.Update([]Input{a, b, thief})
	if len(c.Problems) != 2 || c.Problems[0].Service != b.Name || c.Problems[1].Service != thief.Name ||
		!strings.Contains(c.Problems[0].Text, "node port 30080/TCP belongs to Service ns/s1") ||
		!strings.Contains(c.Problems[1].Text, "10.96.0.2:80/TCP belongs to Service ns/s1") {
		t.Errorf("%v", c.Problems)
	}
	a.Service = nil
	if c = s.Update([]Input{a}); len(c.Problems) != 0 {
		t.Errorf("%v", c.Problems)
	}
	if got := s.services[b.Name].vips[Port{netip.IPv4Unspecified(), TCP, 30080}].dispatch; got.N != 1 {
		t.Errorf("the node port leads to %+v", got)
	}
	own := simple(4, 1)
	own.Service.Spec.ExternalIPs = []string{"192.0.2.1"}
	own.Service.Spec.Ports[0].Port = 6443
	for _, e := range s.Update([]Input{own}).Add {
		if e.Key.Addr == node.Own[0].Addr() {
			t.Errorf("a Service took an address of carob: %+v", e)
		}
	}
}

// Addresses and ranges are strings of users.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"10.96.0.1", "010.96.000.01", "::ffff:10.0.0.1", "fe80::1%eth0", " 10.0.0.0/8",
		"::/0", "1/1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, ok := parse(s); ok && (!a.IsValid() || a.Zone() != "" || a.Is4In6()) {
			t.Errorf("%q is %v", s, a)
		}
		if p, ok := parsePrefix(s); ok && (!p.IsValid() || p != p.Masked() || p.Addr().Is4In6()) {
			t.Errorf("%q is %v", s, p)
		}
	})
}
