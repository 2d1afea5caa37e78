package job

import (
	"math"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// span is a run of indexes, both ends included.
type span struct{ first, last int }

// indexes is a set of completion indexes, in order, with adjacent spans merged.
type indexes []span

// CountIndexes returns the number of indexes below limit in a list of a Job's status.
func CountIndexes(s string, limit int) int { return parseIndexes(s, limit).total() }

// parseIndexes reads what String writes, up to limit; invalid entries are ignored.
func parseIndexes(s string, limit int) indexes {
	var out indexes
	for part := range strings.SplitSeq(s, ",") {
		from, to, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && ranged {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < 0 || first >= limit || last < first {
			continue
		}
		out = append(out, span{first, min(last, limit-1)})
	}
	slices.SortFunc(out, func(a, b span) int { return a.first - b.first })
	return indexes(nil).merge(out)
}

// String returns the form of completedIndexes and failedIndexes (W5.52): 0,2-5,7,8.
func (x indexes) String() string {
	var b strings.Builder
	for _, s := range x {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s.first))
		switch s.last - s.first {
		case 0:
			continue
		case 1:
			b.WriteByte(',')
		default:
			b.WriteByte('-')
		}
		b.WriteString(strconv.Itoa(s.last))
	}
	return b.String()
}

// total returns the number of indexes in the set.
func (x indexes) total() int {
	n := 0
	for _, s := range x {
		n += s.last - s.first + 1
	}
	return n
}

func (x indexes) has(i int) bool {
	_, found := slices.BinarySearchFunc(x, i, func(s span, i int) int {
		switch {
		case s.last < i:
			return -1
		case s.first > i:
			return 1
		}
		return 0
	})
	return found
}

// with returns the set with more indexes, in any order.
func (x indexes) with(more []int) indexes {
	sorted := slices.Sorted(slices.Values(more))
	other := make(indexes, 0, len(sorted))
	for _, i := range sorted {
		other = append(other, span{i, i})
	}
	return x.merge(other)
}

// merge returns the union of two sets whose spans are sorted.
func (x indexes) merge(y indexes) indexes {
	all := append(slices.Clone(x), y...)
	slices.SortStableFunc(all, func(a, b span) int { return a.first - b.first })
	var out indexes
	for _, s := range all {
		if n := len(out); n > 0 && s.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, s.last)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// common returns the number of indexes in both sets.
func (x indexes) common(y indexes) int {
	n := 0
	for i, j := 0, 0; i < len(x) && j < len(y); {
		n += max(0, min(x[i].last, y[j].last)-max(x[i].first, y[j].first)+1)
		if x[i].last < y[j].last {
			i++
		} else {
			j++
		}
	}
	return n
}

// indexOf returns a pod's completion index, -1 when it has none.
func indexOf(p *corev1.Pod) int {
	s, ok := p.Annotations[batchv1.JobCompletionIndexAnnotation]
	if i, err := strconv.Atoi(s); ok && err == nil && i >= 0 {
		return i
	}
	return -1
}

// mostCounted leaves room to add to numbers that users may change: two of them, and one more, are a number, too.
const mostCounted = math.MaxInt32/2 - 1

// counted reads a number that the controller wrote as an annotation; an invalid one is 0.
func counted(p *corev1.Pod, annotation string) int32 {
	n, err := strconv.ParseInt(p.Annotations[annotation], 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int32(min(n, mostCounted))
}

// failuresBefore returns how many pods of this pod's index failed before it, including ignored
// ones.
func failuresBefore(p *corev1.Pod) int32 {
	return counted(p, batchv1.JobIndexFailureCountAnnotation) +
		counted(p, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

// indexes computes which indexes are completed and which have failed for good.
func (p *plan) indexes() {
	completions := int(*p.job.Spec.Completions)
	p.doneStored = parseIndexes(p.status.CompletedIndexes, completions)
	var done, lost []int
	for _, pod := range p.pods {
		if !Tracked(pod) || !p.within(pod) {
			continue
		}
		if pod.Status.Phase == corev1.PodSucceeded {
			done = append(done, indexOf(pod))
		} else if p.perIndex && p.endsIndex(pod) {
			lost = append(lost, indexOf(pod))
		}
	}
	if p.perIndex && p.status.FailedIndexes != nil {
		p.lost = parseIndexes(*p.status.FailedIndexes, completions)
	}
	// Stored results of an index stay; a success takes precedence over a failure.
	p.done = p.doneStored.with(slices.DeleteFunc(done, p.lost.has))
	p.succeeded = int32(p.done.total())
	if !p.perIndex {
		return
	}
	p.lost = p.lost.with(slices.DeleteFunc(lost, p.done.has))
	p.waiting = map[int]*corev1.Pod{}
	taken := map[int]bool{}
	for _, pod := range p.active {
		taken[indexOf(pod)] = true
	}
	for _, pod := range p.pods {
		i := indexOf(pod)
		if !Tracked(pod) || !p.within(pod) || !p.hasFailed(pod) || p.done.has(i) || p.lost.has(i) || taken[i] {
			continue
		}
		if w := p.waiting[i]; w == nil || failuresBefore(w) <= failuresBefore(pod) &&
			!finishedAt(pod).Before(finishedAt(w)) {
			p.waiting[i] = pod
		}
	}
}

// endsIndex reports whether a pod's failure is the last that its index may have (W5.62, W5.68).
func (p *plan) endsIndex(pod *corev1.Pod) bool {
	if !p.hasFailed(pod) {
		return false
	}
	if pod.Status.Phase != corev1.PodFailed &&
		(p.recorded(batchv1.JobFailureTarget) || p.recorded(batchv1.JobSuccessCriteriaMet)) {
		return false // it is deleted with the others because the Job ends
	}
	counts, action := p.policy(pod)
	return action == batchv1.PodFailurePolicyActionFailIndex ||
		counts && counted(pod, batchv1.JobIndexFailureCountAnnotation) >= *p.job.Spec.BackoffLimitPerIndex
}

// pending returns the lowest n indexes that are neither completed, failed for good, nor
// have a pod (W5.51).
func (p *plan) pending(n int) []int {
	there := p.active
	if p.onlyFailed() {
		there = slices.Concat(p.active, p.terminating)
	}
	var taken []int
	for _, pod := range there {
		if i := indexOf(pod); i >= 0 {
			taken = append(taken, i)
		}
	}
	covered := p.done.merge(p.lost).with(taken)
	var out []int
	next := 0
	for _, s := range append(covered, span{int(*p.job.Spec.Completions), 0}) {
		for ; next < s.first && next < int(*p.job.Spec.Completions) && len(out) < n; next++ {
			out = append(out, next)
		}
		next = max(next, s.last+1)
	}
	return out
}
