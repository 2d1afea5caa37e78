package job

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/seconds"
)

// The wait after consecutive failures doubles from the first to the last (W5.22).
const (
	firstWait = 10 * time.Second
	lastWait  = 10 * time.Minute
)

// Backoff determines the wait after failures of a Job's pods. It is not stored: after a restart
// it starts empty (W5.24).
type Backoff struct {
	Failures int32     // consecutive, since the last success
	Last     time.Time // when the latest of them ended
	// seen holds pods with a finalizer that Failures already includes.
	seen []types.UID
}

// next returns the back-off with the pods that have ended and are not in the status.
func (m Backoff) next(pods, successes, failures []*corev1.Pod) Backoff {
	seen := map[types.UID]bool{}
	for _, uid := range m.seen {
		seen[uid] = true
	}
	fresh := func(all []*corev1.Pod) []*corev1.Pod {
		all = slices.DeleteFunc(slices.Clone(all), func(p *corev1.Pod) bool { return seen[p.UID] })
		slices.SortStableFunc(all, func(a, b *corev1.Pod) int { return finishedAt(a).Compare(finishedAt(b)) })
		return all
	}
	good, bad := fresh(successes), fresh(failures)
	out := Backoff{Failures: m.Failures, Last: m.Last}
	if len(good) > 0 {
		// Failures before the latest success do not count (W5.23).
		out.Failures, out.Last = 0, time.Time{}
		latest := finishedAt(good[len(good)-1])
		bad = slices.DeleteFunc(bad, func(p *corev1.Pod) bool { return !finishedAt(p).After(latest) })
	}
	if len(bad) > 0 {
		out.Failures += int32(len(bad))
		out.Last = finishedAt(bad[len(bad)-1])
	}
	for _, p := range slices.Concat(successes, failures) {
		seen[p.UID] = true
	}
	for _, p := range pods {
		if Tracked(p) && seen[p.UID] {
			out.seen = append(out.seen, p.UID)
		}
	}
	return out
}

// left returns how long the next pod has to wait after n failures, the latest at the time last.
func left(n int32, last, now time.Time) time.Duration {
	if n <= 0 {
		return 0
	}
	wait := firstWait
	for i := int32(1); i < n && wait < lastWait; i++ {
		wait *= 2
	}
	return max(0, last.Add(min(wait, lastWait)).Sub(now))
}

// finishedAt returns when a pod ended, as precisely as possible (W5.22).
func finishedAt(p *corev1.Pod) time.Time {
	if t, ok := containersEnded(p); ok {
		return t
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	if p.DeletionTimestamp != nil {
		grace := int64(0)
		if p.DeletionGracePeriodSeconds != nil {
			grace = *p.DeletionGracePeriodSeconds
		}
		return p.DeletionTimestamp.Add(-seconds.Duration(grace))
	}
	return p.CreationTimestamp.Time
}

// containersEnded returns when the last container of a pod ended, sidecars too, if all have.
func containersEnded(p *corev1.Pod) (time.Time, bool) {
	var latest time.Time
	for _, s := range slices.Concat(p.Status.ContainerStatuses, sidecars(p)) {
		if s.State.Terminated == nil || s.State.Terminated.FinishedAt.IsZero() {
			return time.Time{}, false
		}
		if s.State.Terminated.FinishedAt.After(latest) {
			latest = s.State.Terminated.FinishedAt.Time
		}
	}
	return latest, !latest.IsZero()
}

// sidecars returns the statuses of the restartable init containers.
func sidecars(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.DeleteFunc(slices.Clone(p.Status.InitContainerStatuses), func(s corev1.ContainerStatus) bool {
		return !slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool {
			return c.Name == s.Name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		})
	})
}
