package services

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
)

// Fields of a service that a client may leave out or leave unchanged in an update. The fields
// depend on each other, and many clients support only some of them.

// needsIP reports whether a service of this type has a cluster IP of its own, or "None".
func needsIP(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }

func headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

// outside reports whether the service can be reached from outside of the cluster.
func outside(s *corev1.Service) bool {
	return typeHasNodePorts(s) || s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

// keepAllocated fills in the old values of allocated fields that a client left out, so that a plain
// replace or apply of its manifest works.
func keepAllocated(s, old *corev1.Service) {
	is, was := &s.Spec, &old.Spec
	if needsIP(old) && needsIP(s) {
		if is.ClusterIP == "" {
			is.ClusterIP = was.ClusterIP
		}
		if len(is.ClusterIPs) == 0 {
			is.ClusterIPs = slices.Clone(was.ClusterIPs)
		}
	}
	if needsNodePorts(old) && needsNodePorts(s) {
		named := map[string]int32{}
		for _, p := range was.Ports {
			named[p.Name] = p.NodePort
		}
		kept := sets.New(nodePorts(old)...).Intersection(sets.New(nodePorts(s)...))
		for i := range is.Ports {
			p := &is.Ports[i]
			n := named[p.Name]
			// A node port that the client gives to another port is not reused.
			if p.NodePort == 0 && !kept.Has(int(n)) {
				p.NodePort = n
			}
		}
	}
	if needsHealthPort(old) && needsHealthPort(s) && is.HealthCheckNodePort == 0 {
		is.HealthCheckNodePort = was.HealthCheckNodePort
	}
}

// normalize keeps clusterIP and clusterIPs equal for clients that support only the first; old is
// nil for a new service.
func normalize(s, old *corev1.Service) {
	is := &s.Spec
	// A service without an address has no policy for it. Upstream stores one, and hides it from
	// every reader.
	if p := is.InternalTrafficPolicy; p != nil && is.Type == corev1.ServiceTypeExternalName &&
		(*p == corev1.ServiceInternalTrafficPolicyCluster || *p == corev1.ServiceInternalTrafficPolicyLocal) {
		is.InternalTrafficPolicy = nil
	}
	if old == nil {
		if is.ClusterIP != "" && len(is.ClusterIPs) == 0 {
			is.ClusterIPs = []string{is.ClusterIP}
		}
		return
	}
	was := &old.Spec
	if len(is.ClusterIPs) == 0 && is.ClusterIP == was.ClusterIP {
		is.ClusterIPs = slices.Clone(was.ClusterIPs)
	}
	switch {
	case is.ClusterIP == was.ClusterIP || !slices.Equal(is.ClusterIPs, was.ClusterIPs):
	case is.ClusterIP == "":
		is.ClusterIPs = nil
	default:
		is.ClusterIPs = []string{is.ClusterIP}
	}
}

// dropUnused removes fields that only the old type uses, unless the client has changed them, so
// that a client can change the type without clearing all fields that depend on it.
func dropUnused(s, old *corev1.Service) {
	is, was := &s.Spec, &old.Spec
	if needsIP(old) && !needsIP(s) {
		if is.ClusterIP == was.ClusterIP && slices.Equal(is.ClusterIPs, was.ClusterIPs) {
			is.ClusterIP, is.ClusterIPs = "", nil
		}
		if slices.Equal(is.IPFamilies, was.IPFamilies) {
			is.IPFamilies = nil
		}
		if ptr.Deref(is.IPFamilyPolicy, "") == ptr.Deref(was.IPFamilyPolicy, "") {
			is.IPFamilyPolicy = nil
		}
	}
	if typeHasNodePorts(old) && !typeHasNodePorts(s) {
		had := nodePorts(old)
		if !slices.ContainsFunc(nodePorts(s), func(n int) bool { return !slices.Contains(had, n) }) {
			for i := range is.Ports {
				is.Ports[i].NodePort = 0
			}
		}
	}
	if outside(old) && !outside(s) && is.ExternalTrafficPolicy == was.ExternalTrafficPolicy {
		is.ExternalTrafficPolicy = ""
	}
	if needsHealthPort(old) && !needsHealthPort(s) && is.HealthCheckNodePort == was.HealthCheckNodePort {
		is.HealthCheckNodePort = 0
	}
	if was.Type == corev1.ServiceTypeLoadBalancer && is.Type != corev1.ServiceTypeLoadBalancer {
		if a, b := is.AllocateLoadBalancerNodePorts, was.AllocateLoadBalancerNodePorts; a != nil && b != nil &&
			*a == *b {
			is.AllocateLoadBalancerNodePorts = nil
		}
		if ptr.Equal(is.LoadBalancerClass, was.LoadBalancerClass) {
			is.LoadBalancerClass = nil
		}
	}
	if is.Type != corev1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
}
