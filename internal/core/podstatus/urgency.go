package podstatus

import corev1 "k8s.io/api/core/v1"

// Urgency is how soon clients should see a change of a status.
type Urgency int

// From the least to the most urgent.
const (
	// Minor: no client acts on it. Most steps of a start are over before a client could read them.
	Minor Urgency = iota
	// Ended: the pod is not ready any more for the only reason that containers of it ended. Most often their next
	// instances run a moment later.
	Ended
	// Major: clients may act on it: another phase, or another readiness.
	Major
)

// UrgencyOf compares the status that clients have with the newest one.
func UrgencyOf(have, want *corev1.PodStatus) Urgency {
	was, is := ConditionTrue(have.Conditions, corev1.PodReady), ConditionTrue(want.Conditions, corev1.PodReady)
	switch {
	case have.Phase != want.Phase:
		return Major
	case was == is:
		return Minor
	case was && onlyEnded(have, want):
		return Ended
	}
	return Major
}

// onlyEnded reports whether containers ended, and no other one that was ready is not ready now.
func onlyEnded(have, want *corev1.PodStatus) (ended bool) {
	for _, pair := range [][2][]corev1.ContainerStatus{{have.InitContainerStatuses, want.InitContainerStatuses},
		{have.ContainerStatuses, want.ContainerStatuses}} {
		for i := range pair[1] {
			c := &pair[1][i]
			if was := find(pair[0], c.Name); c.Ready || was == nil || !was.Ready {
				continue
			}
			if c.State.Running != nil { // a probe failed
				return false
			}
			ended = true
		}
	}
	return ended
}
