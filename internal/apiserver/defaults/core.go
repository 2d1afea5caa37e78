package defaults

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func service(s *corev1.Service) {
	sp := &s.Spec
	orDefault(&sp.SessionAffinity, corev1.ServiceAffinityNone)
	switch sp.SessionAffinity {
	case corev1.ServiceAffinityNone:
		sp.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if c := sp.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			timeout := corev1.DefaultClientIPServiceAffinitySeconds
			sp.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
		}
	}
	orDefault(&sp.Type, corev1.ServiceTypeClusterIP)
	for i := range sp.Ports {
		p := &sp.Ports[i]
		orDefault(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	external := sp.Type == corev1.ServiceTypeNodePort || sp.Type == corev1.ServiceTypeLoadBalancer ||
		sp.Type == corev1.ServiceTypeClusterIP && len(sp.ExternalIPs) > 0
	if external {
		orDefault(&sp.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if sp.Type != corev1.ServiceTypeExternalName {
		orNew(&sp.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if sp.Type == corev1.ServiceTypeLoadBalancer {
		orNew(&sp.AllocateLoadBalancerNodePorts, true)
		for i := range s.Status.LoadBalancer.Ingress {
			if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" {
				orNew(&in.IPMode, corev1.LoadBalancerIPModeVIP)
			}
		}
	}
}

func endpoints(e *corev1.Endpoints) {
	for i := range e.Subsets {
		for j := range e.Subsets[i].Ports {
			orDefault(&e.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
		}
	}
}

func endpointSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		orNew(&s.Ports[i].Name, "")
		orNew(&s.Ports[i].Protocol, corev1.ProtocolTCP)
	}
}

// secret also moves stringData, which is only a way to write, into data.
func secret(s *corev1.Secret) {
	orDefault(&s.Type, corev1.SecretTypeOpaque)
	if len(s.StringData) == 0 {
		return
	}
	if s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

func namespace(n *corev1.Namespace) {
	orDefault(&n.Status.Phase, corev1.NamespaceActive)
	// A namespace made with generateName has no name yet; it gets the label when it is read back.
	if n.Name != "" && n.Labels[corev1.LabelMetadataName] != n.Name {
		if n.Labels == nil {
			n.Labels = make(map[string]string, 1)
		}
		n.Labels[corev1.LabelMetadataName] = n.Name
	}
}

func node(n *corev1.Node) {
	roundUp(n.Status.Capacity)
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
		return
	}
	roundUp(n.Status.Allocatable)
}

func resourceQuota(q *corev1.ResourceQuota) {
	for _, list := range []corev1.ResourceList{q.Spec.Hard, q.Status.Hard, q.Status.Used} {
		roundUp(list)
	}
}

// limitRange completes each per-container item: a limit that is missing is the maximum, a missing request the limit,
// else the minimum.
func limitRange(l *corev1.LimitRange) {
	fill := func(dst *corev1.ResourceList, src corev1.ResourceList) {
		for name, q := range src {
			if _, ok := (*dst)[name]; ok {
				continue
			}
			if *dst == nil {
				*dst = corev1.ResourceList{}
			}
			(*dst)[name] = q.DeepCopy()
		}
	}
	for i := range l.Spec.Limits {
		it := &l.Spec.Limits[i]
		for _, list := range []corev1.ResourceList{it.Max, it.Min, it.Default, it.DefaultRequest, it.MaxLimitRequestRatio} {
			roundUp(list)
		}
		if it.Type != corev1.LimitTypeContainer {
			continue
		}
		fill(&it.Default, it.Max)
		fill(&it.DefaultRequest, it.Default)
		fill(&it.DefaultRequest, it.Min)
	}
}

func roleRef(r *rbacv1.RoleRef) { orDefault(&r.APIGroup, rbacv1.GroupName) }

func subjects(list []rbacv1.Subject) {
	for i := range list {
		if list[i].Kind == rbacv1.UserKind || list[i].Kind == rbacv1.GroupKind {
			orDefault(&list[i].APIGroup, rbacv1.GroupName)
		}
	}
}

func networkPolicy(p *networkingv1.NetworkPolicy) {
	protocols := func(ports []networkingv1.NetworkPolicyPort) {
		for i := range ports {
			orNew(&ports[i].Protocol, corev1.ProtocolTCP)
		}
	}
	for i := range p.Spec.Ingress {
		protocols(p.Spec.Ingress[i].Ports)
	}
	for i := range p.Spec.Egress {
		protocols(p.Spec.Egress[i].Ports)
	}
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
}

func ingressClass(c *networkingv1.IngressClass) {
	if c.Spec.Parameters != nil {
		orNew(&c.Spec.Parameters.Scope, networkingv1.IngressClassParametersReferenceScopeCluster)
	}
}

func priorityClass(c *schedulingv1.PriorityClass) {
	orNew(&c.PreemptionPolicy, corev1.PreemptLowerPriority)
}

func storageClass(c *storagev1.StorageClass) {
	orNew(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	orNew(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
}

func csiDriver(d *storagev1.CSIDriver) {
	orNew(&d.Spec.AttachRequired, true)
	orNew(&d.Spec.PodInfoOnMount, false)
	orNew(&d.Spec.StorageCapacity, false)
	orNew(&d.Spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	orNew(&d.Spec.RequiresRepublish, false)
	orNew(&d.Spec.SELinuxMount, false)
	orNew(&d.Spec.PreventPodSchedulingIfMissing, false)
	if len(d.Spec.VolumeLifecycleModes) == 0 {
		d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
}
