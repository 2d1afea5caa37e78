package services

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/testwait"
)

// A service without an address has no traffic policy, even if the client sent one; validation
// rejects an invalid one.
func TestExternalNameHasNoInternalPolicy(t *testing.T) {
	old := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP,
		InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal)}}
	for policy, kept := range map[corev1.ServiceInternalTrafficPolicy]bool{
		corev1.ServiceInternalTrafficPolicyLocal:   false,
		corev1.ServiceInternalTrafficPolicyCluster: false, "Bad": true} {
		for _, old := range []*corev1.Service{nil, old} {
			s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName,
				ExternalName: "far.example", InternalTrafficPolicy: new(policy)}}
			if normalize(s, old); (s.Spec.InternalTrafficPolicy != nil) != kept {
				t.Errorf("%s: %v", policy, s.Spec.InternalTrafficPolicy)
			}
		}
	}
	s := old.DeepCopy()
	if normalize(s, old); s.Spec.InternalTrafficPolicy == nil {
		t.Error("a service with an address lost its policy")
	}
}

// A client changes the type and leaves the other fields unchanged.
func TestChangedType(t *testing.T) {
	nodePort := corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.0.0.9",
		ClusterIPs: []string{"10.0.0.9"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		IPFamilyPolicy:        new(corev1.IPFamilyPolicySingleStack),
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		Ports:                 []corev1.ServicePort{{Port: 80, NodePort: 30080}}}
	balanced := *nodePort.DeepCopy()
	balanced.Type, balanced.AllocateLoadBalancerNodePorts, balanced.LoadBalancerClass = corev1.ServiceTypeLoadBalancer,
		new(true), new("example.org/lb")
	balanced.ExternalTrafficPolicy, balanced.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 30081
	reached := *nodePort.DeepCopy()
	reached.Type, reached.ExternalIPs, reached.Ports[0].NodePort = corev1.ServiceTypeClusterIP, []string{"192.0.2.1"}, 0
	for name, x := range map[string]struct {
		old    corev1.ServiceSpec
		change func(*corev1.ServiceSpec)
		kept   string // fields of the old type that are kept
	}{
		"NodePort to ExternalName": {nodePort,
			func(s *corev1.ServiceSpec) { s.Type, s.ExternalName = corev1.ServiceTypeExternalName, "far.example" }, ""},
		"NodePort to ClusterIP": {nodePort, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeClusterIP },
			"address"},
		"LoadBalancer to ClusterIP": {balanced, func(s *corev1.ServiceSpec) {
			s.Type = corev1.ServiceTypeClusterIP
		}, "address"},
		"no external address": {reached, func(s *corev1.ServiceSpec) { s.ExternalIPs = nil }, "address"},
		"another external policy": {nodePort,
			func(s *corev1.ServiceSpec) { s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeClusterIP, "Local" },
			"address policy"},
	} {
		s, old := &corev1.Service{Spec: *x.old.DeepCopy()}, &corev1.Service{Spec: *x.old.DeepCopy()}
		x.change(&s.Spec)
		dropUnused(s, old)
		kept := ""
		if s.Spec.ClusterIP != "" || len(s.Spec.ClusterIPs) > 0 || s.Spec.IPFamilyPolicy != nil ||
			len(s.Spec.IPFamilies) > 0 {
			kept = "address"
		}
		if s.Spec.ExternalTrafficPolicy != "" {
			kept += " policy"
		}
		if s.Spec.Ports[0].NodePort != 0 || s.Spec.HealthCheckNodePort != 0 ||
			s.Spec.AllocateLoadBalancerNodePorts != nil || s.Spec.LoadBalancerClass != nil {
			kept += " ports"
		}
		if kept != x.kept {
			t.Errorf("%s keeps %q, not %q", name, kept, x.kept)
		}
	}
}

// An update whose ports fill a request does not keep the API server busy for minutes.
func TestManyPorts(t *testing.T) {
	old := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
		Ports: []corev1.ServicePort{{Port: 1, NodePort: 30000}}}}
	s := old.DeepCopy()
	s.Spec.Ports = make([]corev1.ServicePort, 400_000)
	for i := range 100_000 {
		s.Spec.Ports[i].NodePort = 1
	}
	if took := testwait.Processor(t, func() { keepAllocated(s, old) }); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if n := s.Spec.Ports[len(s.Spec.Ports)-1].NodePort; n != 30000 {
		t.Errorf("node port %d", n)
	}
}

// A new service whose ports fill a request does not keep the API server busy either.
func TestManyNewPorts(t *testing.T) {
	all, err := newPorts(1, 65535)
	if err != nil {
		t.Fatal(err)
	}
	s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
		Ports: make([]corev1.ServicePort, 400_000)}}
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].Port = int32(i%50_000 + 1)
	}
	s.Spec.Ports[399_999].NodePort = 7
	if took := testwait.Processor(t, func() { err = firstPorts(&portClaim{ports: all}, s) }); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if n := s.Spec.Ports[49_999].NodePort; err != nil || n != 7 {
		t.Errorf("node port %d, %v", n, err)
	}
}
