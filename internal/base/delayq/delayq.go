// Package delayq orders keys by the time at which they are due. It has no timer and no goroutine:
// its owner sleeps until Next and then takes the keys that are Due, so nothing runs while nothing
// is due. One goroutine owns a Queue.
package delayq

import (
	"container/heap"
	"time"
)

// Queue is a set of keys, each with a time. The zero value is empty and ready to use.
type Queue[K comparable] struct {
	h  entries[K]
	at map[K]*entry[K]
	n  uint64
}

// Set makes key due at the given time and replaces an earlier time for it.
func (q *Queue[K]) Set(key K, due time.Time) {
	if e, ok := q.at[key]; ok {
		e.due = due
		heap.Fix(&q.h, e.index)
		return
	}
	if q.at == nil {
		q.at = map[K]*entry[K]{}
	}
	q.n++
	e := &entry[K]{key: key, due: due, order: q.n}
	q.at[key] = e
	heap.Push(&q.h, e)
}

// SetEarlier is Set unless key is already due before that.
func (q *Queue[K]) SetEarlier(key K, due time.Time) {
	if e, ok := q.at[key]; !ok || due.Before(e.due) {
		q.Set(key, due)
	}
}

// Remove removes key and reports whether it was in the queue.
func (q *Queue[K]) Remove(key K) bool {
	e, ok := q.at[key]
	if ok {
		heap.Remove(&q.h, e.index)
		delete(q.at, key)
	}
	return ok
}

// Next is the earliest time at which a key is due; false if the queue is empty.
func (q *Queue[K]) Next() (time.Time, bool) {
	if len(q.h) == 0 {
		return time.Time{}, false
	}
	return q.h[0].due, true
}

// Due removes and returns the key that is due first, if it is due by now. Keys due at the same time
// are returned in the order in which they were set.
func (q *Queue[K]) Due(now time.Time) (key K, ok bool) {
	if len(q.h) == 0 || q.h[0].due.After(now) {
		return key, false
	}
	e := heap.Pop(&q.h).(*entry[K])
	delete(q.at, e.key)
	return e.key, true
}

// Has reports whether key is in the queue.
func (q *Queue[K]) Has(key K) bool { _, ok := q.at[key]; return ok }

// Len is the number of keys.
func (q *Queue[K]) Len() int { return len(q.h) }

type entry[K comparable] struct {
	key   K
	due   time.Time
	order uint64
	index int
}

type entries[K comparable] []*entry[K]

func (h entries[K]) Len() int { return len(h) }
func (h entries[K]) Less(i, j int) bool {
	if !h[i].due.Equal(h[j].due) {
		return h[i].due.Before(h[j].due)
	}
	return h[i].order < h[j].order
}
func (h entries[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *entries[K]) Push(x any) {
	e := x.(*entry[K])
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *entries[K]) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}
