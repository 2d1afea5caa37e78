package podstatus

import corev1 "k8s.io/api/core/v1"

// Urgency is how soon clients should see a change of a status.
type Urgency int

// From the least to the most urgent.
const (
	// Minor: no client acts on it. Most steps of a start are over before a client could read them.
	Minor Urgency = iota
	// Ended: the pod is not ready any more for the only reason that containers of it ended whose next instances are
	// being started. Most often they run a moment later.
	Ended
	// Major: clients may act on it: another phase, or another readiness.
	Major
)

// UrgencyOf compares the status of pod, which clients have, with the newest one.
func UrgencyOf(pod *corev1.Pod, want *corev1.PodStatus) Urgency {
	have := &pod.Status
	was, is := ConditionTrue(have.Conditions, corev1.PodReady), ConditionTrue(want.Conditions, corev1.PodReady)
	switch {
	case have.Phase != want.Phase:
		return Major
	case was == is:
		return Minor
	case was && onlyRestarts(pod, want):
		return Ended
	}
	return Major
}

// onlyRestarts reports whether containers ended that start again, and no other one that was ready is not ready now.
func onlyRestarts(pod *corev1.Pod, want *corev1.PodStatus) (restarts bool) {
	before := containersOf(pod)
	after := containersOf(&corev1.Pod{Spec: pod.Spec, Status: *want})
	for i := range after {
		was, c := before[i].status, after[i].status
		if c == nil || c.Ready || was == nil || !was.Ready {
			continue
		}
		if !startsAgain(pod, &after[i]) {
			return false
		}
		restarts = true
	}
	return restarts
}

// startsAgain reports whether a container that is not ready ended, and its next instance waits for nothing.
func startsAgain(pod *corev1.Pod, c *container) bool {
	switch state := &c.status.State; {
	case state.Running != nil: // a probe failed
		return false
	case state.Terminated != nil:
		return pod.DeletionTimestamp != nil || !final(pod, c, state.Terminated)
	case state.Waiting != nil:
		return state.Waiting.Reason == "ContainerCreating" || state.Waiting.Reason == "PodInitializing"
	}
	return true
}
