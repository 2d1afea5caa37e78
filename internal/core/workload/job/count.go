package job

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
)

// count converts results to numbers (W5.31): UIDs whose pod has lost its finalizer become
// numbers, results that are not recorded yet become UIDs or indexes, and the pods whose results
// are then stored lose their finalizer.
func (p *plan) count() {
	u := p.status.UncountedTerminatedPods
	held := map[types.UID]bool{}
	for _, pod := range p.pods {
		if Tracked(pod) {
			held[pod.UID] = true
		}
	}
	settle := func(uids []types.UID, counter *int32) []types.UID {
		left := slices.DeleteFunc(slices.Clone(uids), func(uid types.UID) bool { return !held[uid] })
		*counter += int32(len(uids) - len(left))
		return left
	}
	u.Succeeded = settle(u.Succeeded, &p.status.Succeeded)
	u.Failed = settle(u.Failed, &p.status.Failed)

	var newDone []int
	for _, pod := range p.pods {
		if !Tracked(pod) || !p.settled(pod) {
			continue
		}
		if len(newDone)+len(u.Succeeded)+len(u.Failed) >= limit {
			break // the next step continues
		}
		p.out.Untrack = append(p.out.Untrack, pod)
		switch {
		case !p.within(pod) || p.noted[pod.UID]:
		case pod.Status.Phase == corev1.PodSucceeded && p.indexed:
			// The index is enough not to count it again (W5.32).
			if i := indexOf(pod); !p.doneStored.has(i) && !p.lost.has(i) && !slices.Contains(newDone, i) {
				newDone = append(newDone, i)
			}
		case pod.Status.Phase == corev1.PodSucceeded:
			u.Succeeded = append(u.Succeeded, pod.UID)
		case p.verdict != nil && p.verdict.Type == batchv1.JobSuccessCriteriaMet && p.recorded(p.verdict.Type) &&
			pod.Status.Phase != corev1.PodFailed:
			// It is deleted because other pods were enough, which is not a failure (W5.90).
		case p.hasFailed(pod) || p.verdict != nil && p.verdict.Type == batchv1.JobFailureTarget:
			// Pods that a failed Job still ran count as failed (W5.90).
			if counts, _ := p.policy(pod); counts {
				u.Failed = append(u.Failed, pod.UID)
			}
		}
	}
	if !p.indexed {
		return
	}
	stored := p.doneStored.with(newDone)
	p.status.CompletedIndexes, p.status.Succeeded = stored.String(), int32(stored.total())
	p.status.FailedIndexes = nil
	if p.perIndex {
		s := p.lost.String()
		p.status.FailedIndexes = &s
	}
}

// settled reports whether a pod is only needed until it is counted.
func (p *plan) settled(pod *corev1.Pod) bool {
	switch {
	case p.job.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodSucceeded:
		return true
	case p.verdict != nil:
		// Active pods are deleted first; the Job waits for one that can't be.
		return workload.Terminal(pod) || pod.DeletionTimestamp != nil
	case !p.hasFailed(pod):
		return false
	}
	// The last failed pod of an index passes the number of failures to its replacement (W5.62).
	w := p.waiting[indexOf(pod)]
	return w == nil || w.UID != pod.UID
}
