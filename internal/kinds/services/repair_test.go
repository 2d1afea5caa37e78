package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The findings and actions of a repair, as of upstream's repair controllers.
func TestRepairAddresses(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	svc := func(name string, ips ...string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ips[0], ClusterIPs: ips}}
	}
	rec := func(ip, name string, age time.Duration, change ...func(*networkingv1.IPAddress)) *networkingv1.IPAddress {
		r := record(netip.MustParseAddr(ip), svc(name, ip))
		r.CreationTimestamp = metav1.NewTime(now.Add(-age))
		for _, c := range change {
			c(r)
		}
		return r
	}
	foreign := func(r *networkingv1.IPAddress) {
		r.Spec.ParentRef = &networkingv1.ParentReference{Group: "example.com", Resource: "gateways", Name: "g"}
	}
	unlabelled := func(r *networkingv1.IPAddress) { r.Labels = nil }
	for name, c := range map[string]struct {
		services []*corev1.Service
		records  []*networkingv1.IPAddress
		erase    string
		write    string
		reasons  string
	}{
		"as it should be": {services: []*corev1.Service{svc("a", "10.96.0.2", "fd00::2")},
			records: []*networkingv1.IPAddress{rec("10.96.0.2", "a", 0), rec("fd00::2", "a", 0)}},
		"headless": {services: []*corev1.Service{svc("a", "None")}},
		"a missing record": {services: []*corev1.Service{svc("a", "10.96.0.2", "fd00::2")},
			records: []*networkingv1.IPAddress{rec("10.96.0.2", "a", 0)}, write: "fd00::2=a",
			reasons: "ClusterIPNotAllocated"},
		"of no range": {services: []*corev1.Service{svc("a", "10.97.0.2")},
			records: []*networkingv1.IPAddress{rec("10.97.0.2", "a", time.Hour)}, reasons: "ClusterIPOutOfRange"},
		"not an address": {services: []*corev1.Service{svc("a", "somewhere")},
			reasons: "ClusterIPNotValid"},
		"two services, one address": {services: []*corev1.Service{svc("a", "10.96.0.2"), svc("b", "10.96.0.2")},
			records: []*networkingv1.IPAddress{rec("10.96.0.2", "a", 0)}, reasons: "ClusterIPAlreadyAllocated"},
		"two, the second is recorded": {services: []*corev1.Service{svc("a", "10.96.0.2"), svc("b", "10.96.0.2")},
			records: []*networkingv1.IPAddress{rec("10.96.0.2", "b", 0)}, reasons: "ClusterIPAlreadyAllocated"},
		"two, none is recorded": {services: []*corev1.Service{svc("a", "10.96.0.2"), svc("b", "10.96.0.2")},
			write: "10.96.0.2=a", reasons: "ClusterIPNotAllocated ClusterIPAlreadyAllocated"},
		"recorded for nobody": {services: []*corev1.Service{svc("a", "10.96.0.2")},
			records: []*networkingv1.IPAddress{rec("10.96.0.2", "z", 0)}, erase: "10.96.0.2", write: "10.96.0.2=a",
			reasons: "ClusterIPNotAllocated"},
		"recorded for a gateway": {services: []*corev1.Service{svc("a", "10.96.0.2")},
			records: []*networkingv1.IPAddress{rec("10.96.0.2", "a", 0, foreign, unlabelled)}, erase: "10.96.0.2",
			write: "10.96.0.2=a", reasons: "ClusterIPNotAllocated"},
		"labels are lost": {services: []*corev1.Service{svc("a", "10.96.0.2")},
			records: []*networkingv1.IPAddress{rec("10.96.0.2", "a", 0, unlabelled)}, erase: "10.96.0.2",
			write: "10.96.0.2=a"},
		"leaked": {records: []*networkingv1.IPAddress{rec("10.96.0.2", "a", time.Hour)},
			erase: "10.96.0.2", reasons: "IPAddressNotAllocated"},
		"on its way": {records: []*networkingv1.IPAddress{rec("10.96.0.2", "a", time.Second)}},
		"of a gateway, as ours": {records: []*networkingv1.IPAddress{rec("10.96.0.2", "a", 0, foreign)},
			erase: "10.96.0.2", reasons: "IPAddressNotAllocated"},
		"of a gateway": {records: []*networkingv1.IPAddress{rec("10.96.0.2", "a", time.Hour, foreign,
			unlabelled)}},
		"the service has another": {services: []*corev1.Service{svc("a", "10.96.0.3")},
			records: []*networkingv1.IPAddress{rec("10.96.0.3", "a", time.Hour), rec("10.96.0.2", "a", time.Hour)},
			erase:   "10.96.0.2", reasons: "IPAddressWrongReference"},
		"the service gets a second": {services: []*corev1.Service{svc("a", "10.96.0.3")},
			records: []*networkingv1.IPAddress{rec("10.96.0.3", "a", time.Hour), rec("fd00::2", "a", time.Second)}},
	} {
		p := picture{services: map[types.NamespacedName]*corev1.Service{}, order: c.services, records: c.records,
			now: now, young: inFlight,
			ranges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/112")}}
		for _, s := range c.services {
			p.services[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s
		}
		got := p.addresses()
		var erase, write, reasons []string
		for _, r := range got.erase {
			erase = append(erase, r.Name)
		}
		for _, h := range got.write {
			write = append(write, fmt.Sprintf("%v=%s", h.ip, h.service.Name))
		}
		for _, f := range got.findings {
			reasons = append(reasons, f.Reason)
		}
		if e, w, r := strings.Join(erase, " "), strings.Join(write, " "),
			strings.Join(reasons, " "); e != c.erase || w != c.write || r != c.reasons {
			t.Errorf("%s: erases %q, writes %q, reports %q; want %q, %q, %q", name, e, w, r, c.erase, c.write, c.reasons)
		}
	}
}

// Ports of services that are not marked get marked, and those without a service are released after
// three repairs.
func TestRepairPorts(t *testing.T) {
	ports, err := newPorts(30000, 30100)
	if err != nil {
		t.Fatal(err)
	}
	svc := func(name string, numbers ...int32) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}}
		for i, n := range numbers {
			s.Spec.Ports = append(s.Spec.Ports,
				corev1.ServicePort{Protocol: []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}[i%2],
					NodePort: n})
		}
		return s
	}
	if err := (&portClaim{ports: ports}).take(30099); err != nil {
		t.Fatal(err)
	}
	p := picture{ports: ports, order: []*corev1.Service{svc("a", 30001, 30001), svc("b", 30001), svc("c", 99),
		svc("gone", 30007)}}
	for range 3 {
		served, found := p.nodePorts(func(s *corev1.Service) bool { return s.Name != "gone" })
		ports.rebuild(served)
		var reasons []string
		for _, f := range found {
			reasons = append(reasons, f.Reason)
		}
		want := []string{"PortAlreadyAllocated", "PortOutOfRange"}
		if !ports.taken(30001) || ports.taken(30007) {
			t.Errorf("marked are %v", ports.used)
		}
		if slices.Contains(reasons, "PortNotAllocated") {
			want = append([]string{"PortNotAllocated"}, want...)
		}
		if !slices.Equal(reasons, want) {
			t.Errorf("reports %v, want %v", reasons, want)
		}
	}
	if ports.taken(30099) {
		t.Error("a port of nobody stays")
	}
}

// Allocated ports and addresses avoid the part for explicit requests until the rest is full.
func TestReservedPartIsUsedLast(t *testing.T) {
	for size, reserved := range map[int]int{16: 0, 17: 16, 100: 16, 2768: 86, 10000: 128} {
		p, err := newPorts(20000, 20000+size-1)
		if err != nil || p.reserved != reserved {
			t.Errorf("of %d ports %d are reserved, want %d (%v)", size, p.reserved, reserved, err)
		}
	}
	p, err := newPorts(30000, 30019)
	if err != nil {
		t.Fatal(err)
	}
	c := &portClaim{ports: p}
	for i := range 21 {
		switch n, err := c.next(); {
		case i < 4 && n < 30016, i < 20 && err != nil, i == 20 && err == nil:
			t.Errorf("the %d. port is %d, %v", i+1, n, err)
		}
	}
	for cidr, reserved := range map[string]uint64{"10.0.0.0/29": 0, "10.0.0.0/24": 16, "10.0.0.0/28": 0,
		"10.0.0.0/27": 16, "10.0.0.0/22": 64, "10.0.0.0/16": 256, "fd00::/108": 256} {
		if r := rangeOf(netip.MustParsePrefix(cidr)).reserved; r != reserved {
			t.Errorf("of %s %d are reserved, want %d", cidr, r, reserved)
		}
	}
}
