package services

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/kinds/defaulting"
)

func defaultService(s *corev1.Service) {
	sp := &s.Spec
	defaulting.OrDefault(&sp.SessionAffinity, corev1.ServiceAffinityNone)
	switch sp.SessionAffinity {
	case corev1.ServiceAffinityNone:
		sp.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if c := sp.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			timeout := corev1.DefaultClientIPServiceAffinitySeconds
			sp.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
		}
	}
	defaulting.OrDefault(&sp.Type, corev1.ServiceTypeClusterIP)
	for i := range sp.Ports {
		p := &sp.Ports[i]
		defaulting.OrDefault(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	external := sp.Type == corev1.ServiceTypeNodePort || sp.Type == corev1.ServiceTypeLoadBalancer ||
		sp.Type == corev1.ServiceTypeClusterIP && len(sp.ExternalIPs) > 0
	if external {
		defaulting.OrDefault(&sp.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if sp.Type != corev1.ServiceTypeExternalName {
		defaulting.OrNew(&sp.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if sp.Type == corev1.ServiceTypeLoadBalancer {
		defaulting.OrNew(&sp.AllocateLoadBalancerNodePorts, true)
		for i := range s.Status.LoadBalancer.Ingress {
			if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" {
				defaulting.OrNew(&in.IPMode, corev1.LoadBalancerIPModeVIP)
			}
		}
	}
}

// RegisterDefaults adds the defaults of this package's kinds to s.
func RegisterDefaults(s *runtime.Scheme) { defaulting.Add(s, defaultService) }
