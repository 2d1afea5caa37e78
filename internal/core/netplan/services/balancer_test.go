package services

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The node's addresses become the status of Services of type LoadBalanceronly; addresses of other
// controllers stay.
func TestIngress(t *testing.T) {
	node := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	own := append(node, netip.MustParseAddr("192.0.2.9"))
	balanced := func(change func(*corev1.Service), have ...string) *corev1.Service {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1",
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}}
		for _, ip := range have {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
		if change != nil {
			change(s)
		}
		return s
	}
	for name, tt := range map[string]struct {
		s      *corev1.Service
		want   []string
		change bool
	}{
		"new":   {balanced(nil), []string{"192.0.2.1"}, true},
		"right": {balanced(nil, "192.0.2.1"), []string{"192.0.2.1"}, false},
		"moved": {balanced(nil, "192.0.2.9"), []string{"192.0.2.1"}, true},
		"both families": {balanced(func(s *corev1.Service) {
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
		}), []string{"2001:db8::1", "192.0.2.1"}, true},
		"no longer": {balanced(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }, "192.0.2.1"),
			nil, true},
		"never":   {balanced(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }), nil, false},
		"class":   {balanced(func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("x/y") }), nil, false},
		"foreign": {balanced(nil, "203.0.113.1"), nil, false},
		"a name": {balanced(func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example"}}
		}), nil, false},
		"ending": {balanced(func(s *corev1.Service) { s.DeletionTimestamp = new(metav1.Now()) }), nil, false},
	} {
		want, change := Ingress(tt.s, node, own)
		var got []string
		for _, i := range want {
			got = append(got, i.IP)
		}
		if change != tt.change || change && len(got) != len(tt.want) {
			t.Errorf("%s: %v %v, want %v %v", name, got, change, tt.want, tt.change)
			continue
		}
		for i := range got {
			if got[i] != tt.want[i] {
				t.Errorf("%s: %v, want %v", name, got, tt.want)
			}
		}
	}
}
