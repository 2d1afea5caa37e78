package reconciler

import (
	"cmp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// perRefusal makes the keys that the API refuses wait for so long each, all together: ten attempts per second, as
	// many as upstream's queues allow (W0.11). So 10,000 Jobs beside a full quota cost no more than 600. Namespaces
	// share them equally, so that a refused key does not wait longer because of thousands in another namespace.
	perRefusal = 100 * time.Millisecond
	// longestRefusal is the longest wait of a refused key: the longest of upstream's queues.
	longestRefusal = 1000 * time.Second
	// followers is how many refused keys of a namespace are tried when one of them succeeds. Each that succeeds, too,
	// is followed by as many, so that all of them are tried soon after a quota was raised; while a quota stays full,
	// each success costs two attempts.
	followers = 2
)

// refused reports whether the API refuses what a key requests: by a quota, a policy, or as invalid. Other errors, such
// as those of a store that does not answer, end for all keys at a time.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// refusals are the keys that the API has refused at least patience times, by namespace.
type refusals struct{ keys map[string]map[string]bool }

func namespaceOf(key string) string { return key[:max(strings.LastIndex(key, "/"), 0)] }

// namespaceOrKey is the namespace of a key, or the key if it has none.
func namespaceOrKey(key string) string { return cmp.Or(namespaceOf(key), key) }

func (r *refusals) add(key string) {
	in := r.keys[namespaceOf(key)]
	if in == nil {
		in = map[string]bool{}
		r.keys[namespaceOf(key)] = in
	}
	in[key] = true
}

// remove reports whether the key was there.
func (r *refusals) remove(key string) bool {
	in := r.keys[namespaceOf(key)]
	if !in[key] {
		return false
	}
	if delete(in, key); len(in) == 0 {
		delete(r.keys, namespaceOf(key))
	}
	return true
}

// wait is how long a refused key of the namespace of key waits at least.
func (r *refusals) wait(key string) time.Duration {
	return min(time.Duration(len(r.keys[namespaceOf(key)])*len(r.keys))*perRefusal, longestRefusal)
}

// follow makes refused keys of a namespace due in which one has succeeded. mu is held.
func (l *Reconciler) follow(key string) {
	n := 0
	for other := range l.refusals.keys[namespaceOf(key)] {
		if !l.later.Has(other) {
			continue // it is tried now
		}
		l.later.SetEarlier(other, l.failures[other].last.Add(afterFailure))
		if n++; n == followers {
			return
		}
	}
}
