// Package slowkeys limits how many keys are worked on in parallel. A key that takes long, because its requests wait for
// another program, such as a webhook that does not answer, does not count as a worker, so that the keys of other
// namespaces do not wait for it. The package has no clock, goroutine, or lock: its owner has them.
package slowkeys

import (
	"iter"
	"time"
)

const (
	// After is the time after which a running key is slow.
	After = time.Second
	// InNamespace is how many keys of a namespace may be slow before no other key of it is started.
	InNamespace = 4
	// InAll is how many keys may be slow in all.
	InAll = 256
)

// Limit are the running keys, and those that wait for slow ones of their namespace. With one worker, all keys run one
// after the other.
type Limit[K comparable] struct {
	workers int
	running map[K]run
	slow    int
	count   map[string]int // of slow keys, by namespace
	aside   map[string][]K // keys of the namespaces that have as many slow keys as they may
}

type run struct {
	namespace string
	began     time.Time
	slow      bool
}

// New returns a Limit of workers keys that are not slow.
func New[K comparable](workers int) *Limit[K] {
	return &Limit[K]{workers: workers, running: map[K]run{}, count: map[string]int{}, aside: map[string][]K{}}
}

// Free reports whether another key may be started. If not, next is when the next running key becomes slow; zero if
// one must end first.
func (l *Limit[K]) Free(now time.Time) (ok bool, next time.Time) {
	if len(l.running)-l.slow < l.workers {
		return true, time.Time{}
	}
	if l.workers == 1 {
		return false, time.Time{}
	}
	for key, r := range l.running { // in any order: as many as may be slow
		if r.slow || l.slow == InAll {
			continue
		}
		at := r.began.Add(After)
		if !at.After(now) {
			r.slow = true
			l.running[key] = r
			l.slow++
			l.count[r.namespace]++
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return len(l.running)-l.slow < l.workers, next
}

// Start is called for a key that does not run, when there is a free worker. It returns false if the key must wait for
// slow keys of its namespace: then End returns it when one has ended.
func (l *Limit[K]) Start(key K, namespace string, now time.Time) bool {
	if l.count[namespace] >= InNamespace {
		l.aside[namespace] = append(l.aside[namespace], key)
		return false
	}
	l.running[key] = run{namespace: namespace, began: now}
	return true
}

// End is called for a key that was started. It returns when, and the keys that waited for it.
func (l *Limit[K]) End(key K) (began time.Time, waited []K) {
	r := l.running[key]
	delete(l.running, key)
	if !r.slow {
		return r.began, nil
	}
	l.slow--
	if l.count[r.namespace]--; l.count[r.namespace] == 0 {
		delete(l.count, r.namespace)
	}
	waited = l.aside[r.namespace]
	delete(l.aside, r.namespace)
	return r.began, waited
}

// Began are the times at which the running keys were started.
func (l *Limit[K]) Began() iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for _, r := range l.running {
			if !yield(r.began) {
				return
			}
		}
	}
}

// Empty reports whether no key runs or waits.
func (l *Limit[K]) Empty() bool {
	return len(l.running) == 0 && l.slow == 0 && len(l.count) == 0 && len(l.aside) == 0
}
