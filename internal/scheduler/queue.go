package scheduler

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/backoff"
	"carob/internal/base/delayq"
	"carob/internal/core/placement"
)

// The waits of L2.3.
const (
	initialBackoff   = time.Second
	maxBackoff       = 10 * time.Second
	maxUnschedulable = 5 * time.Minute // then a pod is tried without any reason to
)

// area is where a pod waits.
//
//	          Add                 Pop
//	gated ───────────▶ active ───────────▶ away ──Park──▶ unschedulable
//	                     ▲                  │                  │ Stir, 5 min
//	                     │ expired, or      │ Fail             ▼
//	                     └─ nothing else ── backoff ◀──────────┘
type area int

const (
	gated         area = iota // has scheduling gates: blocked until its spec changes
	active                    // to be tried, by priority and then by age
	waiting                   // backs off
	unschedulable             // no node fits; waits for a change that could help
	away                      // popped: being bound, or its victims are being removed
)

// item is a pod that has no node yet.
type item struct {
	pod      *placement.Pod
	area     area
	queued   time.Time          // since when it waits for this attempt
	attempts int                // decisions that found no node
	errors   int                // errors in a row; they have their own back-off
	refused  []placement.Filter // by the last decision
	stirred  bool               // while away, something changed that could help

	order uint64 // of arrival, to tell equals apart
	index int    // in the heap of active items
}

// queue holds the pods that have no node. It has no lock and no timer: the loop owns it.
type queue struct {
	items  map[types.UID]*item
	active ranking
	wait   delayq.Queue[types.UID] // expiry of back-off
	flush  delayq.Queue[types.UID] // end of the time in unschedulable
	n      uint64
}

func newQueue() *queue { return &queue{items: map[types.UID]*item{}} }

// Add takes a pod that has no node, or a newer version of one.
func (q *queue) Add(p *placement.Pod, now time.Time) {
	it, ok := q.items[p.Object.UID]
	if !ok {
		q.n++
		it = &item{pod: p, order: q.n, area: gated}
		q.items[p.Object.UID] = it
	} else if !differs(it.pod, p) {
		it.pod = p
		return
	}
	it.pod = p
	switch {
	case it.area == away:
		it.stirred = true
	case len(p.Object.Spec.SchedulingGates) > 0:
		q.leave(it)
		it.area = gated
	default:
		q.activate(it, now) // new, ungated or changed: worth an attempt at once
	}
}

// Remove forgets a pod.
func (q *queue) Remove(uid types.UID) {
	if it, ok := q.items[uid]; ok {
		q.leave(it)
		delete(q.items, uid)
	}
}

// Pop takes the pod to try next: the most important active one, else one that
// backs off after finding no node, for then there is time to spare (L2.4).
func (q *queue) Pop() *item {
	if len(q.active) > 0 {
		it := heap.Pop(&q.active).(*item)
		it.area, it.stirred = away, false
		return it
	}
	if q.wait.Len() == 0 {
		return nil
	}
	var best *item
	for _, it := range q.items {
		if it.area == waiting && it.errors == 0 && (best == nil || before(it, best)) {
			best = it
		}
	}
	if best != nil {
		q.leave(best)
		best.area, best.stirred = away, false
	}
	return best
}

// Park puts a popped pod aside until something changes that concerns the filters
// that refused it; no filters means any change.
func (q *queue) Park(it *item, refused []placement.Filter, now time.Time) {
	if q.items[it.pod.Object.UID] != it {
		return // deleted meanwhile
	}
	it.errors, it.refused = 0, refused
	it.attempts++
	if it.stirred {
		q.backOff(it, now)
		return
	}
	it.area, it.queued = unschedulable, now
	q.flush.Set(it.pod.Object.UID, now.Add(maxUnschedulable))
}

// Fail puts a popped pod aside after an error that trying again may cure.
func (q *queue) Fail(it *item, now time.Time) {
	if q.items[it.pod.Object.UID] != it {
		return
	}
	it.errors++
	q.backOff(it, now)
}

// Stir moves the unschedulable pods that the change could help.
func (q *queue) Stir(helps func(refused []placement.Filter) bool, now time.Time) {
	var moved []*item
	for _, it := range q.items {
		switch {
		case it.area == away:
			it.stirred = it.stirred || helps(it.refused)
		case it.area == unschedulable && helps(it.refused):
			moved = append(moved, it)
		}
	}
	slices.SortFunc(moved, func(a, b *item) int { return cmp.Compare(a.order, b.order) })
	for _, it := range moved {
		q.backOff(it, now)
	}
}

// Expire moves the pods whose time is up.
func (q *queue) Expire(now time.Time) {
	for uid, ok := q.wait.Due(now); ok; uid, ok = q.wait.Due(now) {
		q.activate(q.items[uid], now)
	}
	for uid, ok := q.flush.Due(now); ok; uid, ok = q.flush.Due(now) {
		q.activate(q.items[uid], now)
	}
}

// Next is when Expire has something to do; zero when never.
func (q *queue) Next() time.Time {
	next, _ := q.wait.Next()
	if flush, ok := q.flush.Next(); ok && (next.IsZero() || flush.Before(next)) {
		next = flush
	}
	return next
}

// backOff makes the pod wait, counted from when it was last tried.
func (q *queue) backOff(it *item, now time.Time) {
	n := it.attempts
	if it.errors > 0 {
		n = it.errors
	}
	since := now
	if it.area == unschedulable {
		since = it.queued
	}
	until := since.Add(backoff.Exponential{Initial: initialBackoff, Max: maxBackoff}.Delay(n))
	if rest := until.Truncate(time.Second); !rest.Equal(until) {
		until = rest.Add(time.Second)
	}
	if !until.After(now) {
		q.activate(it, now)
		return
	}
	q.leave(it)
	it.area = waiting
	q.wait.Set(it.pod.Object.UID, until)
}

func (q *queue) activate(it *item, now time.Time) {
	q.leave(it)
	it.area, it.queued = active, now
	heap.Push(&q.active, it)
}

// leave takes the pod out of the structure of its area.
func (q *queue) leave(it *item) {
	switch it.area {
	case active:
		heap.Remove(&q.active, it.index)
	case waiting:
		q.wait.Remove(it.pod.Object.UID)
	case unschedulable:
		q.flush.Remove(it.pod.Object.UID)
	case gated, away:
	}
	it.area = away
}

// before orders pods to try: priority, then age (L2.2).
func before(a, b *item) bool {
	if a.pod.Priority != b.pod.Priority {
		return a.pod.Priority > b.pod.Priority
	}
	if !a.queued.Equal(b.queued) {
		return a.queued.Before(b.queued)
	}
	return a.order < b.order
}

type ranking []*item

func (r ranking) Len() int           { return len(r) }
func (r ranking) Less(i, j int) bool { return before(r[i], r[j]) }
func (r ranking) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].index, r[j].index = i, j
}
func (r *ranking) Push(x any) {
	it := x.(*item)
	it.index = len(*r)
	*r = append(*r, it)
}
func (r *ranking) Pop() any {
	old := *r
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*r = old[:len(old)-1]
	return it
}
