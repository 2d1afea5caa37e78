package services

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A headless Service may have another target port than its port, as in Kubernetes (N0.33): it is used in
// EndpointSlices that users manage.
func TestTargetPortOfHeadlessService(t *testing.T) {
	spec := &corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 8080,
		Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(3000)}}}
	if errs := validateServicePorts(spec, field.NewPath("ports")); len(errs) > 0 {
		t.Error(errs)
	}
	spec.Ports[0].TargetPort = intstr.FromInt32(70000)
	if errs := validateServicePorts(spec, field.NewPath("ports")); len(errs) != 1 {
		t.Errorf("a port that is none: %v", errs)
	}
}
