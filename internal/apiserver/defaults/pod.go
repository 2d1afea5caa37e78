package defaults

import (
	// Digests of an image's name are checked by them.
	_ "crypto/sha256"
	_ "crypto/sha512"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Pod fills in a pod (L1.8–L1.21). Unlike a pod template a pod also gets requests copied from limits, host ports on the
// host network and enableServiceLinks.
func Pod(p *corev1.Pod) {
	podSpec(&p.Spec)
	requestsFromLimits(p.Spec.InitContainers)
	requestsFromLimits(p.Spec.Containers)
	orNew(&p.Spec.EnableServiceLinks, true)
	if p.Spec.HostNetwork {
		hostPorts(p.Spec.InitContainers)
		hostPorts(p.Spec.Containers)
	}
	roundUp(p.Status.AllocatedResources)
	if r := p.Status.Resources; r != nil {
		roundUp(r.Limits)
		roundUp(r.Requests)
	}
	for i := range p.Status.InitContainerStatuses {
		resourceStatus(&p.Status.InitContainerStatuses[i])
	}
	for i := range p.Status.ContainerStatuses {
		resourceStatus(&p.Status.ContainerStatuses[i])
	}
}

func podTemplate(t *corev1.PodTemplateSpec) { podSpec(&t.Spec) }

func podSpec(s *corev1.PodSpec) {
	orDefault(&s.RestartPolicy, corev1.RestartPolicyAlways)
	orDefault(&s.DNSPolicy, corev1.DNSClusterFirst)
	orDefault(&s.SchedulerName, corev1.DefaultSchedulerName)
	orNew(&s.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	if *s.TerminationGracePeriodSeconds < 0 {
		one := int64(1)
		s.TerminationGracePeriodSeconds = &one
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	orDefault(&s.ServiceAccountName, s.DeprecatedServiceAccount)
	s.DeprecatedServiceAccount = s.ServiceAccountName

	roundUp(s.Overhead)
	if s.Resources != nil {
		roundUp(s.Resources.Limits)
		roundUp(s.Resources.Requests)
	}
	for i := range s.InitContainers {
		container(&s.InitContainers[i])
	}
	for i := range s.Containers {
		container(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		container((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
	for i := range s.Volumes {
		volume(&s.Volumes[i].VolumeSource)
	}
}

func container(c *corev1.Container) {
	orDefault(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	orDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	orDefault(&c.ImagePullPolicy, pullPolicy(c.Image))
	for i := range c.Ports {
		orDefault(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if f := c.Env[i].ValueFrom; f != nil {
			fieldRef(f.FieldRef)
			if f.FileKeyRef != nil {
				orNew(&f.FileKeyRef.Optional, false)
			}
		}
	}
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
	probe(c.LivenessProbe)
	probe(c.ReadinessProbe)
	probe(c.StartupProbe)
	if l := c.Lifecycle; l != nil {
		if l.PostStart != nil {
			httpGet(l.PostStart.HTTPGet)
		}
		if l.PreStop != nil {
			httpGet(l.PreStop.HTTPGet)
		}
	}
}

// pullPolicy is Always for the tag "latest", named or implied; an image with another tag or a digest is looked up on
// the node first (L1.15), and so is what is no name of an image.
func pullPolicy(image string) corev1.PullPolicy {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return corev1.PullIfNotPresent
	}
	if tagged, ok := named.(reference.Tagged); ok && tagged.Tag() != "latest" {
		return corev1.PullIfNotPresent
	} else if _, digested := named.(reference.Digested); digested && !ok {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}

func probe(p *corev1.Probe) {
	if p == nil {
		return
	}
	orDefault(&p.TimeoutSeconds, 1)
	orDefault(&p.PeriodSeconds, 10)
	orDefault(&p.SuccessThreshold, 1)
	orDefault(&p.FailureThreshold, 3)
	httpGet(p.HTTPGet)
	if p.GRPC != nil {
		orNew(&p.GRPC.Service, "")
	}
}

func httpGet(h *corev1.HTTPGetAction) {
	if h == nil {
		return
	}
	orDefault(&h.Path, "/")
	orDefault(&h.Scheme, corev1.URISchemeHTTP)
}

func fieldRef(f *corev1.ObjectFieldSelector) {
	if f != nil {
		orDefault(&f.APIVersion, "v1")
	}
}

// roundUp keeps quantities at a resolution of 1/1000, the finest a resource list may hold.
func roundUp(l corev1.ResourceList) {
	for name, q := range l {
		if q.RoundUp(resource.Milli) {
			continue
		}
		l[name] = q
	}
}

func requestsFromLimits(cs []corev1.Container) {
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

func hostPorts(cs []corev1.Container) {
	for i := range cs {
		for j := range cs[i].Ports {
			orDefault(&cs[i].Ports[j].HostPort, cs[i].Ports[j].ContainerPort)
		}
	}
}

func resourceStatus(s *corev1.ContainerStatus) {
	roundUp(s.AllocatedResources)
	if s.Resources != nil {
		roundUp(s.Resources.Limits)
		roundUp(s.Resources.Requests)
	}
}
