package services

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/kinds/table"
)

// ServicePorts prints "80/TCP" or, with a node port, "80:30080/TCP".
func ServicePorts(ports []corev1.ServicePort) string {
	if len(ports) == 0 {
		return table.None
	}
	out := make([]string, len(ports))
	for i, p := range ports {
		out[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			out[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return strings.Join(out, ",")
}

// ExternalIP prints how a service is reached from outside.
func ExternalIP(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		var in []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			if i.IP != "" {
				in = append(in, i.IP)
			} else if i.Hostname != "" {
				in = append(in, i.Hostname)
			}
		}
		in = append(in, s.Spec.ExternalIPs...)
		if len(in) == 0 {
			return "<pending>"
		}
		return strings.Join(in, ",")
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	default:
		return table.OrNone(strings.Join(s.Spec.ExternalIPs, ","))
	}
}
