package sim

import (
	"container/heap"
	"time"
)

// loop is virtual time: a queue of things to do, in order of their time and, at
// one time, of their making. It is the Clock of the simulated runtime too.
type loop struct {
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

// Now implements the runtime's Clock.
func (l *loop) Now() time.Time { return l.now }

// AfterFunc implements the runtime's Clock.
func (l *loop) AfterFunc(d time.Duration, do func()) (stop func()) {
	l.made++
	i := &item{at: l.now.Add(max(d, 0)), made: l.made, do: do}
	heap.Push(&l.queue, i)
	return func() { i.dead = true }
}

// run lets time pass until end.
func (l *loop) run(end time.Time) {
	for len(l.queue) > 0 && !l.queue[0].at.After(end) {
		i := heap.Pop(&l.queue).(*item)
		if !i.dead {
			l.now = i.at
			i.do()
		}
	}
	l.now = end
}
