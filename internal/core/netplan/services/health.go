package services

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// HealthCheck is the health check response of a node for a Service with externalTrafficPolicy Local
// (N2.K).
type HealthCheck struct {
	Port  uint16 // the Service's healthCheckNodePort
	Local int    // addresses of ready endpoints on this node
}

// Health returns the health check that a node serves for a Service in one address family; ok is
// false if there is none. Endpoints that are terminating do not count, although they may still get
// traffic, so that load balancers stop sending new connections first (N2.55).
func Health(v6 bool, n Node, in Input) (check HealthCheck, ok bool) {
	f, s := family{v6}, in.Service
	if s == nil || !Programmed(s) || s.Spec.Type != corev1.ServiceTypeLoadBalancer ||
		s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal ||
		s.Spec.HealthCheckNodePort <= 0 || s.Spec.HealthCheckNodePort > 65535 || !clusterIP(f, s).IsValid() {
		return HealthCheck{}, false
	}
	local := map[netip.Addr]bool{}
	all := indexOf(f, n.Name, in.Slices)
	for i := range s.Spec.Ports {
		for _, e := range all.gather(&s.Spec.Ports[i]) {
			if e.local && e.ready {
				local[e.at.Addr()] = true
			}
		}
	}
	return HealthCheck{Port: uint16(s.Spec.HealthCheckNodePort), Local: len(local)}, true
}
