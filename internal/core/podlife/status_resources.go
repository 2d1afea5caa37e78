package podlife

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"carob/internal/core/resources"
)

// Values at or below these are what the kernel makes of nothing: the runtime's
// word on them says nothing about the spec (L3.127).
const (
	leastCPURequest = 2  // milli; 2 shares
	leastCPULimit   = 10 // milli
)

// setContainerResources fills the resources of a container as they are in force (L4.32, L3.127).
func (m *machine) setContainerResources(c *podContainer, s, old *corev1.ContainerStatus) {
	if c.class == ephemeral {
		return
	}
	granted := m.granted(c.spec)
	want := granted
	if r := c.newest.Resources; r != nil && c.newest.State == ContainerRunning {
		want = inForce(want, r)
	}
	if old != nil && old.Resources != nil && sameResources(old.Resources, want) {
		s.Resources = old.Resources
	} else {
		s.Resources = want.DeepCopy()
	}
	if old != nil && sameList(old.AllocatedResources, granted.Requests) {
		s.AllocatedResources = old.AllocatedResources
	} else {
		s.AllocatedResources = granted.Requests.DeepCopy()
	}
}

// inForce lays what the runtime reports over what was allocated. The runtime
// knows cpu request, cpu limit and memory limit; everything else is as allocated.
func inForce(allocated, actual *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	request := differs(allocated.Requests, actual.Requests, corev1.ResourceCPU, leastCPURequest)
	cpu := differs(allocated.Limits, actual.Limits, corev1.ResourceCPU, leastCPULimit)
	memory := differs(allocated.Limits, actual.Limits, corev1.ResourceMemory, 0)
	if !request && !cpu && !memory {
		return allocated
	}
	r := allocated.DeepCopy()
	if request {
		layOne(&r.Requests, actual.Requests, corev1.ResourceCPU)
	}
	if cpu {
		layOne(&r.Limits, actual.Limits, corev1.ResourceCPU)
	}
	if memory {
		layOne(&r.Limits, actual.Limits, corev1.ResourceMemory)
	}
	return r
}

// layOne makes one entry of a list what it is in from.
func layOne(list *corev1.ResourceList, from corev1.ResourceList, name corev1.ResourceName) {
	switch q, ok := from[name]; {
	case ok && *list == nil:
		*list = corev1.ResourceList{name: q}
	case ok:
		(*list)[name] = q
	default:
		delete(*list, name)
	}
}

// differs tells whether the runtime runs a value that is not the allocated one.
// Shares round by a thousandth of a core; values up to least say nothing.
func differs(allocated, actual corev1.ResourceList, name corev1.ResourceName, least int64) bool {
	want, wanted := allocated[name]
	have, has := actual[name]
	if name == corev1.ResourceMemory {
		return wanted != has || want.Cmp(have) != 0
	}
	a, b := want.MilliValue(), have.MilliValue()
	return !(a <= least && b <= least) && (a-b > 1 || b-a > 1)
}

func sameResources(a, b *corev1.ResourceRequirements) bool {
	return sameList(a.Requests, b.Requests) && sameList(a.Limits, b.Limits) && len(a.Claims) == len(b.Claims)
}

func sameList(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}

// podResources is what status says of the whole pod's resources, kept because it
// is dear to compute and depends on what is granted alone.
type podResources struct {
	Known      bool
	Generation int64
	Requests   corev1.ResourceList
	Pending    *corev1.ResourceRequirements // until the pod runs: the sums
	Running    *corev1.ResourceRequirements // as its cgroup has them
}

// setResources fills the resources of the pod as a whole (L4.32a).
func (m *machine) setResources(st *corev1.PodStatus) {
	r := &m.s.Resources
	if !r.Known || r.Generation != m.s.Resize.Granted {
		now := m.podResources(m.allocated())
		if r.Known && m.s.Resize.Stage != resizeIdle {
			now.Running = r.Running // in force until the pod's group is changed
		}
		*r = now
	}
	st.AllocatedResources, st.Resources = r.Requests, r.Pending
	if st.Phase == corev1.PodRunning {
		st.Resources = r.Running
	}
}

func (m *machine) podResources(pod *corev1.Pod) podResources {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	r := podResources{Known: true, Generation: m.s.Resize.Granted}
	if len(requests) > 0 {
		r.Requests = requests
	}
	if len(requests)+len(limits) == 0 {
		return r
	}
	r.Pending = &corev1.ResourceRequirements{Requests: r.Requests}
	if len(limits) > 0 {
		r.Pending.Limits = limits
	}
	r.Running = &corev1.ResourceRequirements{}
	if p := pod.Spec.Resources; p != nil {
		r.Running = p.DeepCopy()
	}
	if _, named := r.Running.Requests[corev1.ResourceMemory]; !named {
		overlay(&r.Running.Requests, requests, corev1.ResourceMemory)
	}
	m.showCPU(r.Running, resources.PodCgroup(pod).CPUShares)
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		had, is := r.Running.Limits[name], limits[name]
		least := name == corev1.ResourceCPU && had.MilliValue() <= leastCPULimit && is.MilliValue() <= leastCPULimit
		if !least && allLimited(pod, name) { // else the pod's cgroup has no limit (L3.117f)
			overlay(&r.Running.Limits, limits, name)
		}
	}
	return r
}

// showCPU lays the cpu request that the pod's cgroup stands for over the one of its
// spec, which stays when it makes the same cgroup or both are next to nothing.
func (m *machine) showCPU(running *corev1.ResourceRequirements, shares uint64) {
	unified := m.in.Node.CgroupV2
	own := running.Requests[corev1.ResourceCPU]
	shown := resources.SharesMilliCPU(shares, unified)
	if shown <= leastCPURequest && own.MilliValue() <= leastCPURequest ||
		shown == resources.SharesMilliCPU(resources.CPUShares(own.MilliValue()), unified) {
		return
	}
	if running.Requests == nil {
		running.Requests = corev1.ResourceList{}
	}
	running.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(shown, resource.DecimalSI)
}

func overlay(list *corev1.ResourceList, from corev1.ResourceList, name corev1.ResourceName) {
	q, ok := from[name]
	if !ok {
		return
	}
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = q
}

// allLimited tells whether the pod, or else every container of it, has a limit.
func allLimited(pod *corev1.Pod, name corev1.ResourceName) bool {
	if p := pod.Spec.Resources; p != nil {
		if _, ok := p.Limits[name]; ok {
			return true
		}
	}
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if q, ok := list[i].Resources.Limits[name]; !ok || q.IsZero() {
				return false
			}
		}
	}
	return true
}
