package resources

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/component-helpers/resource"
)

// The limits of cpu shares, and the period of a cpu quota in microseconds (L0.52, L3.117a,
// L3.117c).
const (
	MinCPUShares = 2
	MaxCPUShares = 262144
	CPUPeriod    = 100_000
	minCPUQuota  = 1000
)

// CPUShares converts millicores to cgroup v1 cpu shares (L3.117a).
func CPUShares(milliCPU int64) uint64 {
	return uint64(min(max(milliCPU*1024/1000, MinCPUShares), MaxCPUShares))
}

// SharesMilliCPU converts shares that were read from a cgroup to millicores. With unified, they
// were written as the coarser cpu.weight of cgroup v2 (L4.32a).
func SharesMilliCPU(shares uint64, unified bool) int64 {
	if unified {
		shares = (CPUWeight(shares)-1)*(MaxCPUShares-MinCPUShares)/9999 + MinCPUShares
	}
	return int64(shares*1000+1023) / 1024
}

// CPUQuota converts millicores to µs per CPUPeriod; 0 means no limit (L3.117c).
func CPUQuota(milliCPU int64) int64 {
	if milliCPU <= 0 {
		return 0
	}
	return max(milliCPU*CPUPeriod/1000, minCPUQuota)
}

// CPUWeight converts shares linearly to cgroup v2 cpu.weight, as for pod and QoS cgroups (L3.117b).
func CPUWeight(shares uint64) uint64 {
	shares = min(max(shares, MinCPUShares), MaxCPUShares)
	return 1 + (shares-MinCPUShares)*9999/(MaxCPUShares-MinCPUShares)
}

// Cgroup has the values of a cgroup. Zero values mean "no limit".
type Cgroup struct {
	CPUShares uint64     // 2–262144, always set
	CPUQuota  int64      // µs per CPUPeriod
	Memory    int64      // bytes
	HugePages []HugePage // sorted by size; other page sizes are limited to 0 (L3.117n)
}

// HugePage is a limit on pages of one size.
type HugePage struct {
	Size  string // as in the resource name: "2Mi", "1Gi"
	Limit int64  // bytes
}

// PodCgroup computes the cgroup of a pod (L3.117e–g, n).
func PodCgroup(pod *corev1.Pod) Cgroup {
	requests, limits := SpecRequests(pod), SpecLimits(pod)
	cg := Cgroup{CPUShares: MinCPUShares, HugePages: hugePages(limits)}
	switch QoS(pod) {
	case corev1.PodQOSBestEffort:
	case corev1.PodQOSGuaranteed:
		cg.CPUShares = CPUShares(requests.Cpu().MilliValue())
		cg.CPUQuota = CPUQuota(limits.Cpu().MilliValue())
		cg.Memory = limits.Memory().Value()
	case corev1.PodQOSBurstable:
		cg.CPUShares = CPUShares(requests.Cpu().MilliValue())
		if limitsAll(pod, corev1.ResourceCPU) {
			cg.CPUQuota = CPUQuota(limits.Cpu().MilliValue())
		}
		if limitsAll(pod, corev1.ResourceMemory) {
			cg.Memory = limits.Memory().Value()
		}
	}
	return cg
}

// limitsAll reports whether the pod, or each of its containers, limits the resource.
func limitsAll(pod *corev1.Pod, name corev1.ResourceName) bool {
	if podresources.IsPodLevelLimitsSet(pod) {
		if q := pod.Spec.Resources.Limits[name]; q.Sign() > 0 {
			return true
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if q := list[i].Resources.Limits[name]; q.Sign() <= 0 {
				return false
			}
		}
	}
	return true
}

// ContainerCgroup computes the cgroup of one container of the pod: without its own limit the pod's
// limit applies (L3.117j), without a cpu request the cpu limit counts.
func ContainerCgroup(pod *corev1.Pod, c *corev1.Container) Cgroup {
	limit := func(name corev1.ResourceName) (milli, value int64) {
		q := c.Resources.Limits[name]
		if q.IsZero() && podresources.IsPodLevelLimitsSet(pod) {
			q = pod.Spec.Resources.Limits[name]
		}
		return q.MilliValue(), q.Value()
	}
	cpuLimit, _ := limit(corev1.ResourceCPU)
	_, memory := limit(corev1.ResourceMemory)
	request, named := c.Resources.Requests[corev1.ResourceCPU]
	cpu := request.MilliValue()
	if !named {
		cpu = c.Resources.Limits.Cpu().MilliValue()
	}
	// The pod's huge pages are for containers that have no limit for that page size (L3.117j).
	pages := hugePages(c.Resources.Limits)
	if podresources.IsPodLevelLimitsSet(pod) {
		for _, h := range hugePages(pod.Spec.Resources.Limits) {
			if !slices.ContainsFunc(pages, func(own HugePage) bool { return own.Size == h.Size }) {
				pages = append(pages, h)
			}
		}
	}
	return Cgroup{CPUShares: CPUShares(cpu), CPUQuota: CPUQuota(cpuLimit), Memory: memory, HugePages: pages}
}

func hugePages(limits corev1.ResourceList) []HugePage {
	var pages []HugePage
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix); ok {
			q := limits[name]
			pages = append(pages, HugePage{Size: size, Limit: q.Value()})
		}
	}
	return pages
}

// LimitedSwap returns the swap in bytes that a container may use if the node has swap (L3.117l).
// Only Burstable, non-critical containers whose memory request is above zero and below their limit
// get a share, in proportion to their request in the node's memory.
func LimitedSwap(pod *corev1.Pod, c *corev1.Container, nodeMemory, nodeSwap int64) int64 {
	request, limit := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	if QoS(pod) != corev1.PodQOSBurstable || IsCritical(pod) || request == 0 || request == limit || nodeMemory <= 0 {
		return 0
	}
	return int64(float64(request) / float64(nodeMemory) * float64(nodeSwap))
}
