package resources

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Resize is a resize that waits for resources on its node.
type Resize struct {
	Wanted *corev1.Pod // with the desired resources
	Held   *corev1.Pod // with the allocated resources
	Since  time.Time   // when it was deferred
}

// CompareResizes orders waiting resizes, for slices.SortFunc: first those that request no more than
// is allocated, then by priority, QoS class, and waiting time (L3.123). When resources become free,
// they are tried in this order.
func CompareResizes(a, b Resize) int {
	return cmp.Or(
		cmp.Compare(a.grows(), b.grows()),
		cmp.Compare(priority(b.Wanted), priority(a.Wanted)),
		cmp.Compare(classRank(a.Wanted), classRank(b.Wanted)),
		a.Since.Compare(b.Since),
	)
}

// grows returns 1 if the resize requests more cpu or memory than is allocated.
func (r *Resize) grows() int {
	wanted, held := AmountOf(SpecRequests(r.Wanted)), AmountOf(SpecRequests(r.Held))
	if wanted.MilliCPU > held.MilliCPU || wanted.Memory > held.Memory {
		return 1
	}
	return 0
}

func priority(pod *corev1.Pod) int32 {
	if p := pod.Spec.Priority; p != nil {
		return *p
	}
	return 0
}

func classRank(pod *corev1.Pod) int {
	switch QoS(pod) {
	case corev1.PodQOSGuaranteed:
		return 0
	case corev1.PodQOSBurstable:
		return 1
	default:
		return 2
	}
}

// CheckMemoryLimit rejects a limit below what a container uses, both in bytes: the kernel would
// kill it (L3.125).
func CheckMemoryLimit(container string, limit, used int64) error {
	if limit <= 0 || used <= limit {
		return nil
	}
	return fmt.Errorf(
		"cannot decrease memory limits: attempting to set container %q memory limit (%d) below current usage (%d)",
		container, limit, used)
}
