package nodehealth

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/seconds"
	"carob/internal/core/placement"
)

// EvictAt returns when a pod must be evicted from a node with these taints (L7.163); false means
// never. A taint without a matching toleration takes effect at once; otherwise the shortest
// tolerationSeconds of the matching tolerations applies, from the time of the taint on, or from that of the pod's
// arrival on the node if it came later. seen is when both were first observed, which is the start for a taint without
// a time of its own.
func EvictAt(taints []corev1.Taint, pod *corev1.Pod, seen time.Time) (at time.Time, evict bool) {
	tolerations, arrived := pod.Spec.Tolerations, arrival(pod)
	for i := range taints {
		if taints[i].Effect != corev1.TaintEffectNoExecute {
			continue
		}
		since := seen
		if taints[i].TimeAdded != nil {
			since = taints[i].TimeAdded.Time
			if from := earlier(arrived, seen); from.After(since) {
				since = from
			}
		}
		tolerated := false
		var bound *int64 // seconds; nil means for ever
		for j := range tolerations {
			if !placement.Tolerates(tolerations[j:j+1], &taints[i]) {
				continue
			}
			tolerated = true
			if s := tolerations[j].TolerationSeconds; s != nil && (bound == nil || *s < *bound) {
				bound = s
			}
		}
		leave := since
		switch {
		case tolerated && bound == nil:
			continue
		case tolerated:
			leave = since.Add(seconds.Duration(max(*bound, 0)))
		}
		if !evict || leave.Before(at) {
			at, evict = leave, true
		}
	}
	return at, evict
}

// arrival is when the pod was assigned to its node.
func arrival(pod *corev1.Pod) time.Time {
	at := pod.CreationTimestamp.Time
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// OutOfService reports whether a node is not ready and an administrator tainted it as out of service:
// its deleted pods count as ended, although no agent can confirm it (L7.166b).
func OutOfService(node *corev1.Node) bool {
	ready := find(node.Status.Conditions, corev1.NodeReady)
	tainted := func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }
	return (ready == nil || ready.Status != corev1.ConditionTrue) && slices.ContainsFunc(node.Spec.Taints, tainted)
}
