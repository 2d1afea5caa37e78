package allocation

import (
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

// The kernel has no lower values: a container that requests nothing shows these. If the runtime
// reports values at or below them, they do not differ from the spec (L3.127).
const (
	leastCPURequest = 2  // milli; 2 shares
	leastCPULimit   = 10 // milli
)

// InForce returns the allocated resources, with the values that the runtime reports where they
// differ. A runtime reports the CPU request, the CPU limit, and the memory limit.
func InForce(allocated, actual *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	request := differs(allocated.Requests, actual.Requests, corev1.ResourceCPU, leastCPURequest)
	cpu := differs(allocated.Limits, actual.Limits, corev1.ResourceCPU, leastCPULimit)
	memory := differs(allocated.Limits, actual.Limits, corev1.ResourceMemory, 0)
	if !request && !cpu && !memory {
		return allocated
	}
	r := allocated.DeepCopy()
	if request {
		setOrDelete(&r.Requests, actual.Requests, corev1.ResourceCPU)
	}
	if cpu {
		setOrDelete(&r.Limits, actual.Limits, corev1.ResourceCPU)
	}
	if memory {
		setOrDelete(&r.Limits, actual.Limits, corev1.ResourceMemory)
	}
	return r
}

// Reached reports whether a container runs with the wanted resources, as far as its runtime
// reports them.
func Reached(want, actual *corev1.ResourceRequirements) bool {
	other := func(name corev1.ResourceName, least int64) bool {
		_, limited := want.Limits[name]
		return limited && differs(want.Limits, actual.Limits, name, least)
	}
	_, reported := actual.Requests[corev1.ResourceCPU]
	return !other(corev1.ResourceCPU, leastCPULimit) && !other(corev1.ResourceMemory, 0) &&
		!(reported && differs(want.Requests, actual.Requests, corev1.ResourceCPU, leastCPURequest))
}

// WithoutQuota returns the resources that a runtime reports, with the wanted CPU limit: on a node that enforces no CPU
// limits, the runtime reports none.
func WithoutQuota(want, actual *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	limits := corev1.ResourceList{}
	if q, ok := actual.Limits[corev1.ResourceMemory]; ok {
		limits[corev1.ResourceMemory] = q
	}
	if q, ok := want.Limits[corev1.ResourceCPU]; ok {
		limits[corev1.ResourceCPU] = q
	}
	return &corev1.ResourceRequirements{Requests: actual.Requests, Limits: limits}
}

// differs reports whether the runtime uses another value than the allocated one. CPU shares
// round by a thousandth of a core; values up to least do not count.
func differs(allocated, actual corev1.ResourceList, name corev1.ResourceName, least int64) bool {
	want, wanted := allocated[name]
	have, has := actual[name]
	if name == corev1.ResourceMemory {
		return wanted != has || want.Cmp(have) != 0
	}
	a, b := want.MilliValue(), have.MilliValue()
	return !(a <= least && b <= least) && (a-b > 1 || b-a > 1)
}

// Same reports whether two requirements have equal amounts.
func Same(a, b *corev1.ResourceRequirements) bool {
	return resources.SameList(a.Requests, b.Requests) && resources.SameList(a.Limits, b.Limits) &&
		len(a.Claims) == len(b.Claims)
}

// setOrDelete copies one entry of from to a list; it deletes the entry if from has none.
func setOrDelete(list *corev1.ResourceList, from corev1.ResourceList, name corev1.ResourceName) {
	if _, ok := from[name]; !ok {
		delete(*list, name)
		return
	}
	overlay(list, from, name)
}

// overlay copies one entry of from to a list; it keeps the entry if from has none.
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
