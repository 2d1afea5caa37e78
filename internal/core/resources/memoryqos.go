package resources

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/component-helpers/resource"
)

// MemoryQoS configures the memory that cgroup v2 protects for pods, and the usage from which containers are
// throttled before they reach their limit (S11.G). The zero value does neither.
type MemoryQoS struct {
	// Tiered protects the requests of Guaranteed pods (memory.min), and those of Burstable pods as long as there
	// is other memory to reclaim (memory.low).
	Tiered bool
	// Throttling is the part of the memory between request and limit that a container may use without being
	// throttled (memory.high), more than 0 and at most 1; 0: no throttling.
	Throttling float64
}

// Files of cgroup v2.
const (
	memoryMin  = "memory.min"
	memoryLow  = "memory.low"
	memoryHigh = "memory.high"
	pageSize   = 4096
)

// Container returns the files of a container's cgroup and their values (S11.140 to S11.142). allocatable is the
// memory of the node for pods, in bytes: the limit of containers without one.
func (q MemoryQoS) Container(pod *corev1.Pod, c *corev1.Container, allocatable int64) map[string]string {
	request, limit := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	files := map[string]string{}
	switch {
	case request == 0 || !q.Tiered:
		files[memoryMin], files[memoryLow] = "0", "0" // also clears earlier values
	case QoS(pod) == corev1.PodQOSGuaranteed:
		files[memoryMin] = strconv.FormatInt(request, 10)
	default:
		files[memoryLow] = strconv.FormatInt(request, 10)
	}
	whole := limit == request && request != 0
	byPod := limit == 0 && podresources.IsPodLevelResourcesSet(pod) && !pod.Spec.Resources.Limits.Memory().IsZero()
	if whole || byPod {
		return files
	}
	if limit == 0 {
		limit = allocatable
	}
	q.throttle(files, request, limit)
	return files
}

// Pod returns the files of a pod's cgroup and their values; none that the pod does not need.
func (q MemoryQoS) Pod(pod *corev1.Pod) map[string]string {
	requests, limits := SpecRequests(pod), SpecLimits(pod)
	request, limit := requests.Memory().Value(), limits.Memory().Value()
	files := map[string]string{}
	if q.Tiered && request > 0 {
		file := memoryLow
		if QoS(pod) == corev1.PodQOSGuaranteed {
			file = memoryMin
		}
		files[file] = strconv.FormatInt(request, 10)
	}
	if podresources.IsPodLevelResourcesSet(pod) && limit != 0 && limit != request &&
		limitsAll(pod, corev1.ResourceMemory) {
		q.throttle(files, request, limit)
	}
	return files
}

// throttle sets the memory from which a cgroup is throttled, in whole pages, if that is more than its request.
func (q MemoryQoS) throttle(files map[string]string, request, limit int64) {
	if q.Throttling <= 0 {
		return
	}
	high := int64((float64(request)+(float64(limit)-float64(request))*q.Throttling)/pageSize) * pageSize
	if high > request {
		files[memoryHigh] = strconv.FormatInt(high, 10)
	}
}

// MemoryTiers are the sums of the requests of pods, in bytes, by protection.
type MemoryTiers struct{ Guaranteed, Burstable int64 }

// Tiers returns the protected memory of a pod.
func (q MemoryQoS) Tiers(pod *corev1.Pod) MemoryTiers {
	if !q.Tiered {
		return MemoryTiers{}
	}
	requests := SpecRequests(pod)
	switch request := requests.Memory().Value(); QoS(pod) {
	case corev1.PodQOSGuaranteed:
		return MemoryTiers{Guaranteed: request}
	case corev1.PodQOSBurstable:
		return MemoryTiers{Burstable: request}
	default:
		return MemoryTiers{}
	}
}

// Files returns the files of the cgroup of all pods, and of the class Burstable below it: children are protected at
// most up to the protection of their parent (S11.141).
func (t MemoryTiers) Files() (node, burstable map[string]string) {
	low := strconv.FormatInt(t.Burstable, 10)
	return map[string]string{memoryMin: strconv.FormatInt(t.Guaranteed+t.Burstable, 10), memoryLow: low},
		map[string]string{memoryLow: low}
}
