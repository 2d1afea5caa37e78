package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/defaulting"
	"carob/internal/kinds/pods"
)

func defaultEndpoints(e *corev1.Endpoints) {
	for i := range e.Subsets {
		for j := range e.Subsets[i].Ports {
			defaulting.OrDefault(&e.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
		}
	}
}

// defaultSecret also moves stringData, which is write-only, into data.
func defaultSecret(s *corev1.Secret) {
	defaulting.OrDefault(&s.Type, corev1.SecretTypeOpaque)
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

func defaultNamespace(n *corev1.Namespace) {
	defaulting.OrDefault(&n.Status.Phase, corev1.NamespaceActive)
	// A namespace created with generateName has no name yet; it gets the label when it is read from
	// the store.
	if n.Name != "" && n.Labels[corev1.LabelMetadataName] != n.Name {
		if n.Labels == nil {
			n.Labels = make(map[string]string, 1)
		}
		n.Labels[corev1.LabelMetadataName] = n.Name
	}
}

func defaultNode(n *corev1.Node) {
	defaulting.RoundUp(n.Status.Capacity)
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
		return
	}
	defaulting.RoundUp(n.Status.Allocatable)
}

func defaultResourceQuota(q *corev1.ResourceQuota) {
	for _, list := range []corev1.ResourceList{q.Spec.Hard, q.Status.Hard, q.Status.Used} {
		defaulting.RoundUp(list)
	}
}

// defaultLimitRange completes each item for containers: the default limit is the maximum, the
// default request is the limit, or else the minimum.
func defaultLimitRange(l *corev1.LimitRange) {
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
		for _, list := range []corev1.ResourceList{it.Max, it.Min, it.Default, it.DefaultRequest,
			it.MaxLimitRequestRatio} {
			defaulting.RoundUp(list)
		}
		if it.Type != corev1.LimitTypeContainer {
			continue
		}
		fill(&it.Default, it.Max)
		fill(&it.DefaultRequest, it.Default)
		fill(&it.DefaultRequest, it.Min)
	}
}

// RegisterDefaults adds the defaults of this package's kinds to s.
func RegisterDefaults(s *runtime.Scheme) {
	defaulting.Add(s, pods.DefaultPod)
	defaulting.Add(s, func(o *corev1.PodTemplate) { pods.DefaultPodTemplate(&o.Template) })
	defaulting.Add(s, defaultEndpoints)
	defaulting.Add(s, defaultSecret)
	defaulting.Add(s, defaultNamespace)
	defaulting.Add(s, defaultNode)
	defaulting.Add(s, defaultLimitRange)
	defaulting.Add(s, defaultResourceQuota)
}
