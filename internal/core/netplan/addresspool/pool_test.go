package addresspool

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestParse(t *testing.T) {
	p, err := Parse("192.0.2.8/31, 198.51.100.250-198.51.101.1,2001:db8::10-2001:db8::11")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, v6 := range []bool{false, true} {
		for a := range p.all(v6) {
			all = append(all, a.String())
			if !p.Contains(a) {
				t.Errorf("%s is not in the pool", a)
			}
		}
	}
	if len(all) != 2+8+2 || all[0] != "192.0.2.8" || all[9] != "198.51.101.1" || all[11] != "2001:db8::11" {
		t.Errorf("%d: %v", len(all), all)
	}
	for _, out := range []string{"192.0.2.7", "192.0.2.10", "198.51.101.2", "2001:db8::12", "::"} {
		if p.Contains(netip.MustParseAddr(out)) {
			t.Errorf("%s is in the pool", out)
		}
	}
	if !p.Overlaps(netip.MustParsePrefix("198.51.101.0/24")) || p.Overlaps(netip.MustParsePrefix("198.51.102.0/24")) ||
		p.Overlaps(netip.MustParsePrefix("fd00::/8")) {
		t.Error("overlaps")
	}
	for _, bad := range []string{"", "192.0.2.1", "192.0.2.9-192.0.2.1", "192.0.2.1-2001:db8::1", "224.0.0.0/4",
		"127.0.0.0/8", "0.0.0.0/0", "fe80::1-fe80::2", "192.0.2.0/24,192.0.2.200-192.0.2.201", "::ffff:192.0.2.1/128",
		"fe80::1%eth0-fe80::2%eth0", "192.0.2.0/33"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("192.0.2.0/24,2001:db8::1-2001:db8::2")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err != nil {
			return
		}
		for _, r := range p.ranges {
			if r.last.Less(r.first) || !p.Contains(r.first) || !p.Contains(r.last) {
				t.Errorf("%q: %v", text, r)
			}
		}
	})
}

// world has the Services of the API; their statuses are written by the state.
type world struct {
	*testing.T
	state    *State
	pool     Pool
	services map[string]*corev1.Service
	age      int
	node     []netip.Addr
}

func newWorld(t *testing.T, list string) *world {
	t.Helper()
	p, err := Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return &world{T: t, state: New(p), pool: p, services: map[string]*corev1.Service{}}
}

func nameOf(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

// set stores a Service, as a change of the former one, and returns its addresses, or why it has
// none.
func (w *world) set(name string, change func(*corev1.Service)) string {
	w.Helper()
	s := w.services[name]
	if s == nil {
		w.age++
		s = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
			CreationTimestamp: metav1.Unix(int64(w.age), 0), Annotations: map[string]string{}},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1",
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"app": name},
				Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}}
	}
	s = s.DeepCopy()
	if change != nil {
		change(s)
	}
	w.services[name] = s
	events := w.apply(Input{nameOf(name), s})
	if out := w.status(name); out != "" {
		return out
	}
	for _, n := range events {
		if n.Name.Name == name && n.Type == corev1.EventTypeWarning {
			return n.Reason + ": " + n.Text
		}
	}
	return ""
}

func (w *world) apply(in ...Input) []Event {
	w.Helper()
	writes, events := w.state.Update(in, w.node)
	var written []Input
	for _, one := range writes {
		s := w.services[one.Name.Name].DeepCopy()
		s.Status.LoadBalancer.Ingress = one.Ingress
		w.services[one.Name.Name] = s
		written = append(written, Input{one.Name, s})
	}
	if again, _ := w.state.Update(written, w.node); len(again) > 0 {
		w.Fatalf("its own writes changed something: %v", again)
	}
	return events
}

func (w *world) remove(name string) {
	w.Helper()
	delete(w.services, name)
	w.apply(Input{Name: nameOf(name)})
}

func (w *world) status(name string) string {
	var out []string
	for _, i := range w.services[name].Status.LoadBalancer.Ingress {
		out = append(out, i.IP)
	}
	return strings.Join(out, " ")
}

func (w *world) want(got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%q, want %q", got, want)
	}
}

func requests(ip string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerIP = ip } //nolint:staticcheck // still in use
}

func TestAllocate(t *testing.T) {
	w := newWorld(t, "192.0.2.10-192.0.2.12")
	w.node = []netip.Addr{netip.MustParseAddr("192.0.2.11")}
	w.want(w.set("a", nil), "192.0.2.10")
	w.want(w.set("b", nil), "192.0.2.12") // 192.0.2.11 is the node's
	w.want(w.set("c", nil), `AllocationFailed: Failed to allocate IP for "ns/c": no available IPv4 addresses`)
	w.want(w.set("c", func(s *corev1.Service) { s.Labels = map[string]string{"x": "y"} }), "") // reported once
	w.want(w.set("other", func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("example.com/x") }), "")
	w.remove("a")
	w.want(w.status("c"), "192.0.2.10") // it had waited
	w.want(w.set("b", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }), "")
	w.want(w.set("d", nil), "192.0.2.12")
	w.want(w.set("c", func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }), "192.0.2.10") // it keeps it
}

func TestRequestedAddress(t *testing.T) {
	w := newWorld(t, "192.0.2.10-192.0.2.12,2001:db8::1-2001:db8::2")
	w.want(w.set("a", requests("192.0.2.12")), "192.0.2.12")
	w.want(w.set("a", requests("192.0.2.11")), "192.0.2.11") // it moves
	w.want(w.set("b", requests("192.0.2.11")), `AllocationFailed: Failed to allocate IP for "ns/b": `+
		"192.0.2.11 belongs to Service ns/a, and they have no sharing key in common")
	w.want(w.set("c", requests("203.0.113.1")),
		`AllocationFailed: Failed to allocate IP for "ns/c": 203.0.113.1 is not in the pool`)
	w.want(w.set("d", requests("no address\x00")),
		`AllocationFailed: Failed to allocate IP for "ns/d": "no address\x00" is not an IP address`)
	w.want(w.set("e", requests("2001:db8::1")), `AllocationFailed: Failed to allocate IP for "ns/e": `+
		"2001:db8::1 is not one address of each family of the Service")
	both := func(s *corev1.Service) {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
		s.Annotations[annotationAddresses] = "192.0.2.12, 2001:db8::2"
	}
	w.want(w.set("f", both), "192.0.2.12 2001:db8::2")
	w.want(w.set("f", requests("192.0.2.12")), `ClearAssignment: it can no longer have 192.0.2.12 2001:db8::2`)
	w.remove("a")
	w.want(w.status("b"), "192.0.2.11")
}

func TestFamilies(t *testing.T) {
	dual := func(policy corev1.IPFamilyPolicy) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
			s.Spec.IPFamilyPolicy = &policy
		}
	}
	w := newWorld(t, "192.0.2.10-192.0.2.12,2001:db8::1-2001:db8::2")
	w.want(w.set("a", dual(corev1.IPFamilyPolicyRequireDualStack)), "2001:db8::1 192.0.2.10")
	w.want(w.set("a", func(s *corev1.Service) { s.Spec.IPFamilies = s.Spec.IPFamilies[:1] }), "2001:db8::1")
	w = newWorld(t, "192.0.2.10-192.0.2.12")
	w.want(w.set("a", dual(corev1.IPFamilyPolicyRequireDualStack)),
		`AllocationFailed: Failed to allocate IP for "ns/a": no available IPv6 addresses`)
	w.want(w.set("b", dual(corev1.IPFamilyPolicyPreferDualStack)), "192.0.2.10")
	w.want(w.set("c", func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }),
		`AllocationFailed: Failed to allocate IP for "ns/c": no available IPv6 addresses`)
}

func TestSharing(t *testing.T) {
	w := newWorld(t, "192.0.2.10-192.0.2.13")
	shares := func(key string, port int32, local bool) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Annotations[annotationShared], s.Spec.Ports[0].Port = key, port
			if s.Spec.ExternalTrafficPolicy = ""; local {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}
		}
	}
	w.want(w.set("a", shares("key", 80, false)), "192.0.2.10")
	w.want(w.set("b", shares("key", 443, false)), "192.0.2.10")
	w.want(w.set("other key", shares("another", 8080, false)), "192.0.2.11")
	w.want(w.set("same port", shares("key", 80, false)), "192.0.2.12")
	w.want(w.set("local", shares("key", 81, true)), "192.0.2.13")
	w.want(w.set("same pods", func(s *corev1.Service) {
		shares("key", 82, true)(s)
		s.Spec.Selector = map[string]string{"app": "local"}
	}), "192.0.2.13")
	// Both need the port: the later Service loses the address.
	w.want(w.set("b", func(s *corev1.Service) { s.Spec.Ports[0].Port = 80 }),
		"ClearAssignment: it can no longer have 192.0.2.10")
}

// After random changes, each Service has the addresses that a restart reads from the statuses, no
// two Services have an address that they may not share, and no waiting Service could get an
// address.
func TestChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 2))
	w := newWorld(t, "192.0.2.10-192.0.2.13,2001:db8::1-2001:db8::3")
	for step := range 3000 {
		name := fmt.Sprint("s", r.IntN(9))
		if r.IntN(5) == 0 && w.services[name] != nil {
			w.remove(name)
		} else {
			w.set(name, func(s *corev1.Service) {
				s.Annotations[annotationShared] = []string{"", "x", "y"}[r.IntN(3)]
				s.Spec.Ports[0].Port = int32(80 + r.IntN(3))
				s.Spec.ExternalTrafficPolicy = []corev1.ServiceExternalTrafficPolicy{"Cluster", "Local"}[r.IntN(2)]
				s.Spec.Type = []corev1.ServiceType{"LoadBalancer", "LoadBalancer", "NodePort"}[r.IntN(3)]
				s.Spec.IPFamilies = [][]corev1.IPFamily{{"IPv4"}, {"IPv6"}, {"IPv6", "IPv4"}}[r.IntN(3)]
				s.Spec.LoadBalancerIP = "" //nolint:staticcheck // still in use
				if r.IntN(3) == 0 && len(s.Spec.IPFamilies) == 1 && s.Spec.IPFamilies[0] == "IPv4" {
					requests(fmt.Sprintf("192.0.2.%d", 9+r.IntN(6)))(s)
				}
			})
		}
		fresh := New(w.pool)
		var in []Input
		for n, s := range w.services {
			in = append(in, Input{nameOf(n), s})
		}
		if writes, _ := fresh.Update(in, nil); len(writes) > 0 {
			t.Fatalf("step %d: a fresh start writes %v", step, writes)
		}
		if !slices.Equal(fresh.Addresses(), w.state.Addresses()) {
			t.Fatalf("step %d: %v, fresh %v", step, w.state.Addresses(), fresh.Addresses())
		}
		for a, users := range w.state.users {
			for _, u := range users {
				if err := w.state.conflict(u, a); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
			}
		}
	}
}

// A Service that is being deleted keeps its address until it is gone; addresses that are no longer
// in the pool are released.
func TestAddressesAreKeptInStatus(t *testing.T) {
	w := newWorld(t, "192.0.2.10-192.0.2.12")
	w.want(w.set("a", requests("192.0.2.12")), "192.0.2.12")
	w.set("a", requests(""))
	w.want(w.set("b", nil), "192.0.2.10")
	again := func(list string) {
		t.Helper()
		p, err := Parse(list)
		if err != nil {
			t.Fatal(err)
		}
		w.pool, w.state = p, New(p)
		var in []Input
		for n, s := range w.services {
			in = append(in, Input{nameOf(n), s})
		}
		w.apply(in...)
	}
	again("192.0.2.10-192.0.2.12")
	w.want(w.status("a")+" "+w.status("b"), "192.0.2.12 192.0.2.10")
	again("192.0.2.11-192.0.2.12")
	w.want(w.status("a")+" "+w.status("b"), "192.0.2.12 192.0.2.11")
	s := w.services["a"].DeepCopy()
	s.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	if writes, _ := w.state.Update([]Input{{nameOf("a"), s}}, nil); len(writes) > 0 {
		t.Errorf("while it is being deleted: %v", writes)
	}
}
