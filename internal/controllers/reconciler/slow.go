package reconciler

import (
	"strings"
	"time"
)

const (
	// slowAfter is the time after which a running key is slow: its requests wait for somebody else, such as a webhook
	// that does not answer. Slow keys are not counted as workers, so that the others do not wait for them.
	slowAfter = time.Second
	// slowInNamespace is how many keys of a namespace may be slow before no other key of it is started.
	slowInNamespace = 4
	// slowInAll is how many keys may be slow in all.
	slowInAll = 256
)

// slow are the running keys that take long, and those that wait for them.
type slow struct {
	keys  map[string]bool
	count map[string]int      // by namespace
	aside map[string][]string // ready keys of the namespaces that have as many slow keys as they may
}

// namespaceOrKey is the namespace of a key, or the key if it has none.
func namespaceOrKey(key string) string {
	if at := strings.LastIndex(key, "/"); at >= 0 {
		return key[:at]
	}
	return key
}

// full reports whether a key must wait for slow keys of its namespace; then it is kept until one ends.
func (s *slow) full(key string) bool {
	in := namespaceOrKey(key)
	if s.count[in] < slowInNamespace {
		return false
	}
	s.aside[in] = append(s.aside[in], key)
	return true
}

// ended removes a key that was running, and returns those that waited for it.
func (s *slow) ended(key string) []string {
	if !s.keys[key] {
		return nil
	}
	delete(s.keys, key)
	in := namespaceOrKey(key)
	if s.count[in]--; s.count[in] == 0 {
		delete(s.count, in)
	}
	waited := s.aside[in]
	delete(s.aside, in)
	return waited
}

// free reports whether another key may be started. If not, next is when the next running key becomes slow; zero if
// one must end first. mu is held.
func (l *Reconciler) free(now time.Time) (ok bool, next time.Time) {
	if len(l.busy)-len(l.slow.keys) < l.workers {
		return true, time.Time{}
	}
	if l.workers == 1 { // the keys must run one after the other
		return false, time.Time{}
	}
	for key, began := range l.began { // in any order: as many as may be slow
		if l.slow.keys[key] || len(l.slow.keys) == slowInAll {
			continue
		}
		at := began.Add(slowAfter)
		if !at.After(now) {
			l.slow.keys[key] = true
			l.slow.count[namespaceOrKey(key)]++
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return len(l.busy)-len(l.slow.keys) < l.workers, next
}
