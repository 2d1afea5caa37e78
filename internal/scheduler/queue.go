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
	"carob/internal/scheduler/devices"
)

// maxUnschedulable is the time after which a pod is tried again without a change (L2.3).
const maxUnschedulable = 5 * time.Minute

// area is the part of the queue that a pod is in.
//
//	          Add                 Pop
//	gated ───────────▶ active ───────────▶ away ──Park──▶ unschedulable
//	                     ▲                  │                  │ Requeue, 5 min
//	                     │ expired, or      │ Fail             ▼
//	                     └─ nothing else ── backoff ◀──────────┘
type area int

const (
	gated         area = iota // has scheduling gates, or lacks claims: blocked until that changes
	active                    // to be tried, by priority, then by age
	waiting                   // in back-off
	unschedulable             // no node fits; waits for an event that may help
	away                      // popped: being bound, or its victims are being deleted
)

// item is a pod without a node.
type item struct {
	pod      *placement.Pod
	area     area
	queued   time.Time          // start of the wait for this attempt
	attempts int                // decisions without a fitting node
	errors   int                // consecutive errors, which have their own back-off
	refused  []placement.Filter // filters of the last decision, and of events since then
	answers  *placement.Answers // of extenders, during a search for a preemption
	devices  *devices.Attempt   // of the last decision; nil if the pod needs none
	stored   *devices.Stored    // the writes for devices
	storing  bool               // devices are being written
	newer    *placement.Pod     // what the watch has shown since the pod was assumed; nil for nothing
	retry    bool               // while away, there was an event that may help
	victims  int                // that are deleted, and not seen to end yet

	first time.Time // when it could be tried for the first time
	began time.Time // of this attempt
	tries int       // attempts, with this one

	order uint64 // order of arrival, which decides between equal pods
	index int    // in the heap of active or eager items
}

// queue holds the pods without a node. It has no lock and no timer: the loop owns it.
type queue struct {
	items         map[types.UID]*item
	active        ranking
	retryWhenIdle ranking                 // those in back-off because no node fitted, tried when the scheduler is idle
	parked        map[types.UID]*item     // those that an event may help: unschedulable, or away for a preemption
	wait          delayq.Queue[types.UID] // end of the back-off
	flush         delayq.Queue[types.UID] // end of the time in unschedulable
	sizes         [away + 1]int           // pods in each area
	n             uint64
	delays        backoff.Exponential

	held  func(*placement.Pod) bool // whether a pod must not be tried
	holds func(*item)               // called for pods that must not
}

func newQueue(initial, most time.Duration) *queue {
	return &queue{delays: backoff.Exponential{Initial: initial, Max: most}, items: map[types.UID]*item{},
		parked: map[types.UID]*item{}, held: (*placement.Pod).Gated, holds: func(*item) {}}
}

// Add adds a pod without a node, or updates it. A change of the pod itself causes an attempt if it
// concerns the filters that refused it.
func (q *queue) Add(p *placement.Pod, now time.Time) {
	it, ok := q.items[p.Object.UID]
	if !ok {
		q.n++
		it = &item{pod: p, order: q.n, area: gated}
		q.items[p.Object.UID] = it
		q.sizes[gated]++
		if q.held(p) {
			q.holds(it)
		} else {
			q.activate(it, now)
		}
		return
	}
	filters, changed := placement.OwnChange(it.pod, p)
	it.pod = p
	helps := slices.ContainsFunc(filters, func(f placement.Filter) bool { return slices.Contains(it.refused, f) })
	switch {
	case !changed:
	case it.area != away && q.held(p):
		q.leave(it)
		q.place(it, gated)
		q.holds(it)
	case it.area == gated:
		q.activate(it, now)
	case it.area == away:
		it.retry = it.retry || helps
	case it.area == unschedulable && helps, it.area == waiting && it.errors == 0 && helps:
		q.activate(it, now)
	}
}

// Remove removes a pod.
func (q *queue) Remove(uid types.UID) {
	if it, ok := q.items[uid]; ok {
		q.leave(it)
		q.sizes[away]--
		delete(q.items, uid)
	}
}

// Pop returns the next pod to try: the first active one, otherwise one that is in back-off because
// no node fitted, since the scheduler is idle (L2.4).
func (q *queue) Pop() *item {
	if len(q.active) > 0 {
		it := heap.Pop(&q.active).(*item)
		q.place(it, away)
		it.retry = false
		return it
	}
	if len(q.retryWhenIdle) == 0 {
		return nil
	}
	it := q.retryWhenIdle[0]
	q.leave(it)
	it.retry = false
	return it
}

// Watch records events that happen while a popped pod waits for a preemption.
func (q *queue) Watch(it *item, refused []placement.Filter) {
	if q.items[it.pod.Object.UID] == it {
		it.refused = refused
		q.parked[it.pod.Object.UID] = it
	}
}

// Park sets a popped pod aside until a change concerns the filters that rejected it, also those that
// rejected it at events since Watch; no filters: any change.
func (q *queue) Park(it *item, refused []placement.Filter, now time.Time) {
	if q.items[it.pod.Object.UID] != it {
		return // deleted meanwhile
	}
	if q.parked[it.pod.Object.UID] == it {
		refused = append(slices.Clip(refused), it.refused...)
	}
	it.errors, it.refused = 0, refused
	it.attempts++
	if it.retry {
		q.backOff(it, now)
		return
	}
	q.place(it, unschedulable)
	it.queued = now
	q.parked[it.pod.Object.UID] = it
	q.flush.Set(it.pod.Object.UID, now.Add(maxUnschedulable))
}

// Fail sets a popped pod aside after an error that a retry may resolve.
func (q *queue) Fail(it *item, now time.Time) {
	if q.items[it.pod.Object.UID] != it {
		return
	}
	it.errors++
	q.backOff(it, now)
}

// Requeue moves the parked pods that an event helps.
func (q *queue) Requeue(helps func(*item) bool, now time.Time) {
	var moved []*item
	for _, it := range q.parked {
		switch {
		case it.area == away:
			it.retry = it.retry || helps(it)
		case helps(it):
			moved = append(moved, it)
		}
	}
	slices.SortFunc(moved, func(a, b *item) int { return cmp.Compare(a.order, b.order) })
	for _, it := range moved {
		q.backOff(it, now)
	}
}

// Retry schedules another attempt of a parked pod, after its back-off.
func (q *queue) Retry(it *item, now time.Time) {
	switch it.area {
	case away:
		it.retry = true
	case unschedulable:
		q.backOff(it, now)
	case gated, active, waiting:
	}
}

// Expire moves the pods whose time has expired.
func (q *queue) Expire(now time.Time) {
	for uid, ok := q.wait.Due(now); ok; uid, ok = q.wait.Due(now) {
		q.activate(q.items[uid], now)
	}
	for uid, ok := q.flush.Due(now); ok; uid, ok = q.flush.Due(now) {
		q.activate(q.items[uid], now)
	}
}

// Next is the next time for Expire; zero if there is none.
func (q *queue) Next() time.Time {
	next, _ := q.wait.Next()
	if flush, ok := q.flush.Next(); ok && (next.IsZero() || flush.Before(next)) {
		next = flush
	}
	return next
}

// backOff starts the back-off of the pod, counted from its last attempt.
func (q *queue) backOff(it *item, now time.Time) {
	n := it.attempts
	if it.errors > 0 {
		n = it.errors
	}
	since := now
	if it.area == unschedulable {
		since = it.queued
	}
	until := since.Add(q.delays.Delay(n))
	// Truncate drops the monotonic clock: the result would depend on the wall clock, which may be set back.
	if begun := until.Sub(until.Truncate(time.Second)); begun > 0 {
		until = until.Add(time.Second - begun)
	}
	if !until.After(now) {
		q.activate(it, now)
		return
	}
	q.leave(it)
	q.place(it, waiting)
	q.wait.Set(it.pod.Object.UID, until)
	if it.errors == 0 {
		heap.Push(&q.retryWhenIdle, it)
	}
}

func (q *queue) activate(it *item, now time.Time) {
	q.leave(it)
	q.place(it, active)
	it.queued = now
	if it.first.IsZero() {
		it.first = now
	}
	heap.Push(&q.active, it)
}

// leave removes the pod from the structure of its area.
func (q *queue) leave(it *item) {
	switch it.area {
	case active:
		heap.Remove(&q.active, it.index)
	case waiting:
		q.wait.Remove(it.pod.Object.UID)
		if it.errors == 0 {
			heap.Remove(&q.retryWhenIdle, it.index)
		}
	case unschedulable:
		q.flush.Remove(it.pod.Object.UID)
	case gated, away:
	}
	delete(q.parked, it.pod.Object.UID)
	q.place(it, away)
}

// place counts the pod in another area.
func (q *queue) place(it *item, to area) {
	q.sizes[it.area]--
	q.sizes[to]++
	it.area = to
}

// before orders pods: priority, then age (L2.2).
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
