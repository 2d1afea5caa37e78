package mirror_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/netplan/mirror"
)

func object(subsets ...corev1.EndpointSubset) *corev1.Endpoints {
	return &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "e",
		Labels:      map[string]string{"team": "a"},
		Annotations: map[string]string{"k": "v", corev1.LastAppliedConfigAnnotation: "{}"}}, Subsets: subsets}
}

func addresses(ips ...string) []corev1.EndpointAddress {
	var out []corev1.EndpointAddress
	for _, ip := range ips {
		out = append(out, corev1.EndpointAddress{IP: ip})
	}
	return out
}

func ports(numbers ...int32) []corev1.EndpointPort {
	var out []corev1.EndpointPort
	for _, n := range numbers {
		out = append(out, corev1.EndpointPort{Name: fmt.Sprint("p", n), Port: n, Protocol: corev1.ProtocolTCP})
	}
	return out
}

// apply applies a plan like the API server.
func apply(t *testing.T, stored map[string]*discoveryv1.EndpointSlice, p mirror.Plan) {
	t.Helper()
	for _, s := range p.Create {
		s = s.DeepCopy()
		s.Name = fmt.Sprintf("%s%d", s.GenerateName, len(stored)+100*len(s.Endpoints))
		for stored[s.Name] != nil {
			s.Name += "x"
		}
		stored[s.Name] = s
	}
	for _, s := range p.Update {
		if stored[s.Name] == nil || stored[s.Name].AddressType != s.AddressType {
			t.Errorf("an update of %s that the API refuses", s.Name)
		}
		stored[s.Name] = s.DeepCopy()
	}
	for _, s := range p.Delete {
		delete(stored, s.Name)
	}
}

// lines formats the content of slices: address, whether it is ready, and ports, sorted.
func lines(stored map[string]*discoveryv1.EndpointSlice) []string {
	var out []string
	for _, s := range stored {
		var list []string
		for _, p := range s.Ports {
			list = append(list, fmt.Sprint(*p.Port))
		}
		for _, e := range s.Endpoints {
			out = append(out, fmt.Sprintf("%s %s %v %s", s.AddressType, e.Addresses[0], *e.Conditions.Ready,
				strings.Join(list, ",")))
		}
	}
	slices.Sort(out)
	return out
}

func decide(t *testing.T, stored map[string]*discoveryv1.EndpointSlice, e *corev1.Endpoints) mirror.Plan {
	t.Helper()
	p := mirror.Decide(e, slices.Collect(maps.Values(stored)))
	apply(t, stored, p)
	if again := mirror.Decide(e, slices.Collect(maps.Values(stored))); len(again.Create)+len(again.Update)+
		len(again.Delete) > 0 {
		t.Errorf("a second plan changes something: %+v", again)
	}
	return p
}

// N1.39 to N1.43: which fields are copied, and to which slice.
func TestCopies(t *testing.T) {
	stored := map[string]*discoveryv1.EndpointSlice{}
	is := func(what string, want ...string) {
		t.Helper()
		if got := lines(stored); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	decide(t, stored, object(corev1.EndpointSubset{Addresses: addresses("10.0.0.1"), Ports: ports(80)}))
	is("one address", "IPv4 10.0.0.1 true 80")
	var first string
	for name, s := range stored {
		first = name
		if s.Labels[discoveryv1.LabelManagedBy] != mirror.ManagedBy || s.Labels[discoveryv1.LabelServiceName] != "db" ||
			s.Labels["team"] != "a" || !maps.Equal(s.Annotations, map[string]string{"k": "v"}) ||
			s.OwnerReferences[0].Kind != "Endpoints" || s.OwnerReferences[0].UID != "e" || s.GenerateName != "db-" ||
			s.Endpoints[0].Conditions.Serving != nil || s.Endpoints[0].Conditions.Terminating != nil {
			t.Errorf("slice %+v", s)
		}
	}
	decide(t, stored, object(corev1.EndpointSubset{Addresses: addresses("10.0.0.2"), Ports: ports(80)}))
	is("another address", "IPv4 10.0.0.2 true 80")
	decide(t, stored, object(corev1.EndpointSubset{Addresses: addresses("10.0.0.2"), Ports: ports(81)}))
	is("another port", "IPv4 10.0.0.2 true 81")
	if stored[first] == nil {
		t.Error("the slice has another name")
	}
	decide(t, stored, object(
		corev1.EndpointSubset{Addresses: addresses("10.0.0.2", "fd00::1"), Ports: ports(81)},
		corev1.EndpointSubset{Addresses: addresses("10.0.0.2"), NotReadyAddresses: addresses("010.0.0.3"),
			Ports: ports(82)}))
	is("families, subsets", "IPv4 10.0.0.2 true 81,82", "IPv4 10.0.0.3 false 82", "IPv6 fd00::1 true 81")
	decide(t, stored, object(corev1.EndpointSubset{Addresses: addresses("10.0.0.2"),
		NotReadyAddresses: addresses("10.0.0.2")}))
	is("ready and not ready, no ports", "IPv4 10.0.0.2 false ")
	decide(t, stored, object())
	is("nothing")

	var many []corev1.EndpointAddress
	for i := range 1500 {
		many = append(many, corev1.EndpointAddress{IP: fmt.Sprintf("10.1.%d.%d", i/200, i%200+1)})
	}
	p := decide(t, stored, object(corev1.EndpointSubset{Addresses: append(many, addresses("x", "1.2.3")...),
		Ports: ports(1)}))
	if n := len(lines(stored)); n != mirror.Max || p.Skipped != 502 {
		t.Errorf("%d endpoints, %d skipped, %d invalid", n, p.Skipped, p.Invalid)
	}
	if p := decide(t, stored, object(corev1.EndpointSubset{Addresses: addresses("x", "10.0.0.1"),
		Ports: ports(1)})); p.Invalid != 1 || p.Skipped != 1 {
		t.Errorf("an invalid address: %+v", p)
	}
}

func TestMirrors(t *testing.T) {
	const skip, leader = discoveryv1.LabelSkipMirror, "control-plane.alpha.kubernetes.io/leader"
	service := &corev1.Service{}
	selecting := &corev1.Service{Spec: corev1.ServiceSpec{Selector: map[string]string{"a": "b"}}}
	with := func(f func(*corev1.Endpoints)) *corev1.Endpoints { e := object(); f(e); return e }
	for what, c := range map[string]struct {
		e    *corev1.Endpoints
		s    *corev1.Service
		want bool
	}{
		"by hand":         {object(), service, true},
		"without Service": {object(), nil, false},
		"none":            {nil, service, false},
		"with a selector": {object(), selecting, false},
		"to be skipped":   {with(func(e *corev1.Endpoints) { e.Labels[skip] = "true" }), service, false},
		"not quite":       {with(func(e *corev1.Endpoints) { e.Labels[skip] = "yes" }), service, true},
		"a leader":        {with(func(e *corev1.Endpoints) { e.Annotations[leader] = "" }), service, false},
		"is being deleted": {with(func(e *corev1.Endpoints) { e.DeletionTimestamp = new(metav1.Now()) }),
			service, false},
	} {
		if mirror.Mirrors(c.e, c.s) != c.want {
			t.Errorf("%s: %v", what, !c.want)
		}
	}
}

// With any object and any existing slices, the slices afterwards have the content of the object,
// each address and port once, and a second plan changes nothing.
func TestRandom(t *testing.T) {
	for seed := range uint64(300) {
		dice := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a repeatable test
		stored := map[string]*discoveryv1.EndpointSlice{}
		for range 6 {
			e := object()
			want := map[string]bool{} // address and port → ready
			for range dice.IntN(4) {
				s := corev1.EndpointSubset{}
				for _, n := range dice.Perm(3)[:1+dice.IntN(3)] {
					s.Ports = append(s.Ports, ports(int32(80+n))...)
				}
				for range dice.IntN(6) {
					ip := fmt.Sprintf("10.0.0.%d", 1+dice.IntN(8))
					if dice.IntN(4) == 0 {
						ip = fmt.Sprintf("fd00::%d", 1+dice.IntN(8))
					}
					ready := dice.IntN(2) == 0
					if ready {
						s.Addresses = append(s.Addresses, addresses(ip)...)
					} else {
						s.NotReadyAddresses = append(s.NotReadyAddresses, addresses(ip)...)
					}
					for _, p := range s.Ports {
						k := fmt.Sprint(ip, " ", p.Port)
						if was, ok := want[k]; !ok || was {
							want[k] = ready
						}
					}
				}
				e.Subsets = append(e.Subsets, s)
			}
			decide(t, stored, e)
			got := map[string]bool{}
			for _, s := range stored {
				for _, end := range s.Endpoints {
					for _, p := range s.Ports {
						k := fmt.Sprint(end.Addresses[0], " ", *p.Port)
						if _, twice := got[k]; twice {
							t.Errorf("seed %d: %s is in slices twice", seed, k)
						}
						got[k] = *end.Conditions.Ready
					}
				}
			}
			if !maps.Equal(got, want) {
				t.Fatalf("seed %d: %v, want %v", seed, got, want)
			}
		}
	}
}

// FuzzCopies uses port names and addresses that were not validated.
func FuzzCopies(f *testing.F) {
	f.Add("10.0.0.1", "http", "TCP", int32(80), "x")
	f.Add("::ffff:1.2.3.4", "a\";b", "", int32(-1), "\x00")
	f.Fuzz(func(t *testing.T, ip, name, protocol string, port int32, app string) {
		e := object(corev1.EndpointSubset{Addresses: addresses(ip, "10.0.0.1"), Ports: []corev1.EndpointPort{
			{Name: name, Port: max(port, 0), Protocol: corev1.Protocol(protocol), AppProtocol: &app},
			{Name: name + app, Port: max(port, 0), Protocol: corev1.Protocol(protocol)}}})
		decide(t, map[string]*discoveryv1.EndpointSlice{}, e)
	})
}
