package workload

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Failure is the last failure at a place, such as a node, and the wait that follows it. The zero value is none.
type Failure struct {
	At   time.Time
	Wait time.Duration
}

// Next returns the failure now that follows an earlier one; its wait doubles from the first to the longest. While the
// wait of the earlier one lasts, at is its end. After twice the longest wait, the back-off starts anew.
func (f Failure) Next(now time.Time, first, longest time.Duration) (next Failure, at time.Time) {
	if f.At.IsZero() || now.Sub(f.At) > 2*longest {
		return Failure{At: now, Wait: first}, time.Time{}
	}
	if now.Sub(f.At) < f.Wait {
		return f, f.At.Add(f.Wait)
	}
	return Failure{At: now, Wait: min(2*f.Wait, longest)}, time.Time{}
}

// The waits before pods that nodes refuse are replaced, from the first to the longest. Later than refusalCounts after
// a refusal, the first one is in force again.
const (
	FirstRefusal   = time.Second
	LongestRefusal = time.Minute
	refusalCounts  = 10 * time.Minute
)

// Refused reports whether a node refused a pod: it failed before any of its containers was started (L3.12).
func Refused(p *corev1.Pod) bool {
	if p.Status.Phase != corev1.PodFailed || p.Status.Reason == "" {
		return false
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if s := &list[i]; s.ContainerID != "" || s.State.Running != nil || s.RestartCount > 0 {
				return false
			}
		}
	}
	return true
}

// AfterRefusals returns when an owner may replace the pods that nodes refused; zero is now. A node refuses a pod within
// milliseconds, and so it would refuse the next one, and all that follow (a template that names a node where its pods
// do not fit). refused are the refused pods of the owner that still exist, active its active ones. A pod that runs ends
// the back-off. Refused pods that were created in the same second are one refusal.
func AfterRefusals(refused, active []*corev1.Pod, now time.Time) time.Time {
	since := now.Add(-refusalCounts)
	for _, p := range active {
		if p.Status.Phase == corev1.PodRunning && p.CreationTimestamp.After(since) {
			since = p.CreationTimestamp.Time
		}
	}
	tries := map[int64]bool{}
	var last time.Time
	for _, p := range refused {
		if at := p.CreationTimestamp.Time; at.After(since) {
			tries[at.Unix()] = true
			if at.After(last) {
				last = at
			}
		}
	}
	if len(tries) == 0 {
		return time.Time{}
	}
	wait := FirstRefusal
	for range len(tries) - 1 {
		wait = min(2*wait, LongestRefusal)
	}
	if at := last.Add(wait); at.After(now) {
		return at
	}
	return time.Time{}
}
