package services

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A health check exists for type LoadBalancer with ETP Local only, and counts ready addresses on this
// node, once each (N0.31, N2.55).
func TestHealth(t *testing.T) {
	here, there := "here", "there"
	service := func(change func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1",
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 32000,
			Ports: []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 81}}}
		if change != nil {
			change(s)
		}
		return s
	}
	endpoint := func(ip, node string, c discoveryv1.EndpointConditions) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node, Conditions: c}
	}
	ready := discoveryv1.EndpointConditions{Ready: new(true)}
	ending := discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("a"), Port: new(int32(8080))},
			{Name: new("b"), Port: new(int32(8081))}},
		Endpoints: []discoveryv1.Endpoint{endpoint("10.88.0.2", here, ready), endpoint("10.88.0.3", here, ready),
			endpoint("10.88.0.4", here, ending), endpoint("10.89.0.2", there, ready)}}
	for _, c := range []struct {
		name   string
		v6     bool
		change func(*corev1.Service)
		want   HealthCheck
		ok     bool
	}{
		{"local", false, nil, HealthCheck{32000, 2}, true},
		{"other family", true, nil, HealthCheck{}, false},
		{"cluster", false, func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "Cluster" }, HealthCheck{}, false},
		{"node port", false, func(s *corev1.Service) { s.Spec.Type = "NodePort" }, HealthCheck{}, false},
		{"no port", false, func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 0 }, HealthCheck{}, false},
		{"somebody else's", false, func(s *corev1.Service) { s.Labels = map[string]string{labelProxyName: "x"} },
			HealthCheck{}, false},
	} {
		in := Input{Service: service(c.change), Slices: []*discoveryv1.EndpointSlice{slice}}
		if got, ok := Health(c.v6, Node{Name: "here"}, in); got != c.want || ok != c.ok {
			t.Errorf("%s: %v %v", c.name, got, ok)
		}
	}
	if _, ok := Health(false, Node{Name: "here"}, Input{}); ok {
		t.Error("a deleted Service has a health check")
	}
}
