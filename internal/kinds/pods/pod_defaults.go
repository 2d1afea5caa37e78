package pods

import (
	corev1 "k8s.io/api/core/v1"

	"carob/internal/kinds/defaulting"
)

// DefaultPod sets the defaults of a pod (L1.8–L1.21). Unlike a pod template, a pod also gets
// requests copied from limits, host ports in the host network, and enableServiceLinks.
func DefaultPod(p *corev1.Pod) {
	defaultPodSpec(&p.Spec)
	defaultRequestsFromLimits(p.Spec.InitContainers)
	defaultRequestsFromLimits(p.Spec.Containers)
	defaulting.OrNew(&p.Spec.EnableServiceLinks, true)
	if p.Spec.HostNetwork {
		defaultHostPorts(p.Spec.InitContainers)
		defaultHostPorts(p.Spec.Containers)
	}
	defaulting.RoundUp(p.Status.AllocatedResources)
	if r := p.Status.Resources; r != nil {
		defaulting.RoundUp(r.Limits)
		defaulting.RoundUp(r.Requests)
	}
	for i := range p.Status.InitContainerStatuses {
		defaultResourceStatus(&p.Status.InitContainerStatuses[i])
	}
	for i := range p.Status.ContainerStatuses {
		defaultResourceStatus(&p.Status.ContainerStatuses[i])
	}
}

// DefaultPodTemplate sets the defaults of a workload's pod template.
func DefaultPodTemplate(t *corev1.PodTemplateSpec) { defaultPodSpec(&t.Spec) }

func defaultPodSpec(s *corev1.PodSpec) {
	defaulting.OrDefault(&s.RestartPolicy, corev1.RestartPolicyAlways)
	defaulting.OrDefault(&s.DNSPolicy, corev1.DNSClusterFirst)
	defaulting.OrDefault(&s.SchedulerName, corev1.DefaultSchedulerName)
	defaulting.OrNew(&s.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	if *s.TerminationGracePeriodSeconds < 0 {
		one := int64(1)
		s.TerminationGracePeriodSeconds = &one
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	defaulting.OrDefault(&s.ServiceAccountName, s.DeprecatedServiceAccount)
	s.DeprecatedServiceAccount = s.ServiceAccountName

	defaulting.RoundUp(s.Overhead)
	if s.Resources != nil {
		defaulting.RoundUp(s.Resources.Limits)
		defaulting.RoundUp(s.Resources.Requests)
	}
	for i := range s.InitContainers {
		defaultContainer(&s.InitContainers[i])
	}
	for i := range s.Containers {
		defaultContainer(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		defaultContainer((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i].VolumeSource)
	}
}

func defaultContainer(c *corev1.Container) {
	defaulting.OrDefault(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	defaulting.OrDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = DefaultPullPolicy(c.Image)
	}
	for i := range c.Ports {
		defaulting.OrDefault(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if f := c.Env[i].ValueFrom; f != nil {
			defaultFieldRef(f.FieldRef)
			if f.FileKeyRef != nil {
				defaulting.OrNew(&f.FileKeyRef.Optional, false)
			}
		}
	}
	defaulting.RoundUp(c.Resources.Limits)
	defaulting.RoundUp(c.Resources.Requests)
	defaultProbe(c.LivenessProbe)
	defaultProbe(c.ReadinessProbe)
	defaultProbe(c.StartupProbe)
	if l := c.Lifecycle; l != nil {
		if l.PostStart != nil {
			defaultHTTPGet(l.PostStart.HTTPGet)
		}
		if l.PreStop != nil {
			defaultHTTPGet(l.PreStop.HTTPGet)
		}
	}
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	defaulting.OrDefault(&p.TimeoutSeconds, 1)
	defaulting.OrDefault(&p.PeriodSeconds, 10)
	defaulting.OrDefault(&p.SuccessThreshold, 1)
	defaulting.OrDefault(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		defaulting.OrNew(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(h *corev1.HTTPGetAction) {
	if h == nil {
		return
	}
	defaulting.OrDefault(&h.Path, "/")
	defaulting.OrDefault(&h.Scheme, corev1.URISchemeHTTP)
}

func defaultFieldRef(f *corev1.ObjectFieldSelector) {
	if f != nil {
		defaulting.OrDefault(&f.APIVersion, "v1")
	}
}

func defaultRequestsFromLimits(cs []corev1.Container) {
	for i := range cs {
		r := &cs[i].Resources
		if len(r.Limits) == 0 {
			continue
		}
		if r.Requests == nil {
			r.Requests = make(corev1.ResourceList, len(r.Limits))
		}
		for name, q := range r.Limits {
			if _, ok := r.Requests[name]; !ok {
				r.Requests[name] = q.DeepCopy()
			}
		}
	}
}

func defaultHostPorts(cs []corev1.Container) {
	for i := range cs {
		for j := range cs[i].Ports {
			defaulting.OrDefault(&cs[i].Ports[j].HostPort, cs[i].Ports[j].ContainerPort)
		}
	}
}

func defaultResourceStatus(s *corev1.ContainerStatus) {
	defaulting.RoundUp(s.AllocatedResources)
	if s.Resources != nil {
		defaulting.RoundUp(s.Resources.Limits)
		defaulting.RoundUp(s.Resources.Requests)
	}
}
