package services

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/netplan"
)

// Ingress returns the load balancer status of a Service when the node itself is the load balancer: its
// addresses, one of each family of the Service. change is false if the status is right, or belongs to
// another controller: the Service has a loadBalancerClass, or addresses that are not in own, the
// present and former addresses of the node (N11.14).
func Ingress(s *corev1.Service, node, own []netip.Addr) (want []corev1.LoadBalancerIngress, change bool) {
	have := s.Status.LoadBalancer.Ingress
	foreign := slices.ContainsFunc(have, func(i corev1.LoadBalancerIngress) bool {
		a, ok := parse(i.IP)
		return !ok || !slices.Contains(own, a) && !slices.Contains(node, a)
	})
	if foreign || s.Spec.LoadBalancerClass != nil || s.DeletionTimestamp != nil {
		return nil, false
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && Programmed(s) {
		for _, family := range netplan.Families(s) {
			i := slices.IndexFunc(node, func(a netip.Addr) bool { return a.Is6() == (family == corev1.IPv6Protocol) })
			if i >= 0 {
				want = append(want, corev1.LoadBalancerIngress{IP: node[i].String(),
					IPMode: new(corev1.LoadBalancerIPModeVIP)})
			}
		}
	}
	same := slices.EqualFunc(have, want, func(a, b corev1.LoadBalancerIngress) bool {
		return a.IP == b.IP && a.Hostname == "" && len(a.Ports) == 0
	})
	return want, !same
}
