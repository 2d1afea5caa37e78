package sim

import (
	"container/heap"
	"time"
)

// Loop is virtual time: a queue of functions, ordered by time and then by when they were added. It is
// for one goroutine.
type Loop struct {
	now   time.Time
	queue queue
	made  int
}

type item struct {
	at   time.Time
	made int
	do   func()
	dead bool
}

type queue []*item

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].made < q[j].made
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*item)) }
func (q *queue) Pop() any {
	old := *q
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return x
}

// NewLoop returns a loop at the time at which every run begins.
func NewLoop() *Loop { return &Loop{now: epoch} }

// Now returns the virtual time.
func (l *Loop) Now() time.Time { return l.now }

// AfterFunc runs a function later, unless stop is called before.
func (l *Loop) AfterFunc(d time.Duration, do func()) (stop func()) {
	l.made++
	i := &item{at: l.now.Add(max(d, 0)), made: l.made, do: do}
	heap.Push(&l.queue, i)
	return func() { i.dead = true }
}

// Run advances time until end, and runs the functions that are due.
func (l *Loop) Run(end time.Time) {
	for len(l.queue) > 0 && !l.queue[0].at.After(end) {
		i := heap.Pop(&l.queue).(*item)
		if !i.dead {
			l.now = later(l.now, i.at)
			i.do()
		}
	}
	l.now = later(l.now, end)
}

// sleep advances time without running anything, as when the machine is suspended; functions that
// were due run afterwards.
func (l *Loop) sleep(d time.Duration) { l.now = l.now.Add(d) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
