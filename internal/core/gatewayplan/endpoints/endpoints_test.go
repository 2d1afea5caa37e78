package endpoints

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/httproute"
)

// Endpoints are in the order of their addresses, with one of each, that of the first pod: only those of IPv4, of both
// families, and more than an index of 16 bits has.
func TestOrderOfEndpoints(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	six := netip.MustParseAddr("fd00::1").As16()
	for i := range 301 {
		n, both := r.IntN(40), i%3 == 0
		if i == 300 {
			n, both = 1<<16+5, false
		}
		all := make([]Endpoint, n)
		for j := range all {
			last := byte(r.IntN(8))
			addr := netip.AddrFrom4([4]byte{byte(r.IntN(2) * 200), 0, byte(r.IntN(2)), last})
			if both && r.IntN(2) == 0 {
				six[15] = last
				addr = netip.AddrFrom16(six)
			}
			all[j] = Endpoint{Address: netip.AddrPortFrom(addr, uint16(80+r.IntN(2)*60000)),
				Pod: types.UID(fmt.Sprint(r.IntN(3)))}
		}
		want := slices.Clone(all)
		slices.SortFunc(want, func(a, b Endpoint) int {
			return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Pod, b.Pod))
		})
		want = slices.CompactFunc(want, func(a, b Endpoint) bool { return a.Address == b.Address })
		if got := ordered(all); !slices.Equal(got, want) {
			t.Fatalf("%v: %v, want %v", all[:min(n, 40)], got, want)
		}
	}
}

// Ready endpoints get requests, and those that end only while none is ready.
func TestOfService(t *testing.T) {
	s := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	slice := func(port string, number int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
			Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number}}}
	}
	endpoint := func(ip string, ready, serving, ending bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready,
			Serving: &serving, Terminating: &ending}}
	}
	ready, ending, down := endpoint("10.0.0.1", true, true, false), endpoint("10.0.0.2", false, true, true),
		endpoint("10.0.0.3", false, false, false)
	for what, c := range map[string]struct {
		slices []*discoveryv1.EndpointSlice
		want   string
	}{
		"ready only":   {[]*discoveryv1.EndpointSlice{slice("http", 8080, ending, ready, down)}, "[10.0.0.1:8080]"},
		"ending only":  {[]*discoveryv1.EndpointSlice{slice("http", 8080, ending, down)}, "[10.0.0.2:8080 ending]"},
		"none":         {[]*discoveryv1.EndpointSlice{slice("http", 8080, down)}, "[]"},
		"another port": {[]*discoveryv1.EndpointSlice{slice("other", 8080, ready)}, "[]"},
		"twice": {[]*discoveryv1.EndpointSlice{slice("http", 8080, ready), slice("http", 8080, ready)},
			"[10.0.0.1:8080]"},
		"not an address": {[]*discoveryv1.EndpointSlice{slice("http", 8080, endpoint("x\x00", true, true, false))},
			"[]"},
	} {
		out := []string{}
		for _, e := range OfService(s, httproute.Ref{Port: 80}, c.slices) {
			text := e.Address.String()
			if e.Ending {
				text += " ending"
			}
			out = append(out, text)
		}
		if got := fmt.Sprint(out); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}

// A Service may have one number for TCP and for UDP: each has its own endpoints.
func TestProtocols(t *testing.T) {
	s := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
		{Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "tcp", Port: 53, Protocol: corev1.ProtocolTCP}}}}
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
		Ports: []discoveryv1.EndpointPort{
			{Name: new("udp"), Port: new(int32(5353)), Protocol: new(corev1.ProtocolUDP)},
			{Name: new("tcp"), Port: new(int32(5354)), Protocol: new(corev1.ProtocolTCP)}}}
	for udp, want := range map[bool]string{true: "10.0.0.1:5353", false: "10.0.0.1:5354"} {
		got := OfService(s, httproute.Ref{Port: 53, UDP: udp}, []*discoveryv1.EndpointSlice{slice})
		if len(got) != 1 || got[0].Address.String() != want {
			t.Errorf("UDP %v: %v, want %s", udp, got, want)
		}
	}
}

// Each port of a pod that the pool selects is an endpoint, while the pod is ready.
func TestOfPool(t *testing.T) {
	selector, ports := map[string]string{"app": "p"}, []int32{8000, 8002}
	pod := func(name, ip string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name)}}
		p.UID, p.Labels = "u-"+p.UID, map[string]string{"app": "p", "x": "y"}
		p.Status = corev1.PodStatus{PodIP: ip, Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		if change != nil {
			change(p)
		}
		return p
	}
	pods := []*corev1.Pod{pod("b", "10.0.0.2", nil), pod("a", "10.0.0.1", nil),
		pod("other namespace", "10.0.0.3", func(p *corev1.Pod) { p.Namespace = "b" }),
		pod("other label", "10.0.0.4", func(p *corev1.Pod) { p.Labels["app"] = "q" }),
		pod("not ready", "10.0.0.5", func(p *corev1.Pod) { p.Status.Conditions = nil }),
		pod("ending", "10.0.0.6", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }),
		pod("no address", "", nil), pod("over", "10.0.0.7", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}
	var got []string
	for _, e := range OfPool("a", selector, ports, pods) {
		got = append(got, fmt.Sprint(e.Address, e.Name, e.Rank))
	}
	if want := "[10.0.0.1:8000a0 10.0.0.1:8002a1 10.0.0.2:8000b0 10.0.0.2:8002b1]"; fmt.Sprint(got) != want {
		t.Errorf("%v, not %s", got, want)
	}
	if all := OfPool("a", nil, ports, pods); len(all) > 0 {
		t.Errorf("an empty selector: %v", all)
	}
}
