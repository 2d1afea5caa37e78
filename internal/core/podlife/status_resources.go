package podlife

import (
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife/allocation"
	"carob/internal/core/resources"
)

// setContainerResources fills the actual resources of a container (L4.32, L3.127).
func (m *machine) setContainerResources(c *podContainer, s *corev1.ContainerStatus) {
	old := c.old
	if c.class == ephemeral {
		return
	}
	granted := m.granted(c.spec)
	want := granted
	if r := c.newest.Resources; r != nil && c.newest.State == ContainerRunning {
		want = allocation.InForce(want, m.reported(want, r))
	}
	if old != nil && old.Resources != nil && allocation.Same(old.Resources, want) {
		s.Resources = old.Resources
	} else {
		s.Resources = want.DeepCopy()
	}
	if old != nil && resources.SameList(old.AllocatedResources, granted.Requests) {
		s.AllocatedResources = old.AllocatedResources
	} else {
		s.AllocatedResources = granted.Requests.DeepCopy()
	}
}

// reported are the resources that the runtime reports, with the wanted CPU limit if the node enforces none.
func (m *machine) reported(want, actual *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if !m.in.Node.NoCPUQuota {
		return actual
	}
	return allocation.WithoutQuota(want, actual)
}

// wholeResources caches the status of the resources of the whole pod. The computation is expensive
// and depends only on the allocation.
type wholeResources struct {
	Known      bool
	Generation int64
	Status     allocation.Status
}

// setResources fills the resources of the pod as a whole (L4.32a).
func (m *machine) setResources(st *corev1.PodStatus) {
	r := &m.s.Resources
	if !r.Known || r.Generation != m.s.Resize.Granted {
		now := allocation.StatusOf(m.allocated(), m.in.Node.CgroupV2)
		if r.Known && m.s.Resize.Stage != resizeIdle {
			now.Running = r.Status.Running // in effect until the pod's cgroup is changed
		}
		*r = wholeResources{Known: true, Generation: m.s.Resize.Granted, Status: now}
	}
	st.AllocatedResources, st.Resources = r.Status.Requests, r.Status.Pending
	if st.Phase == corev1.PodRunning {
		st.Resources = r.Status.Running
	}
}
