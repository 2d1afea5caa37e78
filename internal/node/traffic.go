package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Traffic is one part of the data plane: the table of Services, DNS, a gateway. The agent calls it before it ends the
// containers of a deleted pod (N8.13).
type Traffic interface {
	// Routed reports whether new connections may be opened to the pod as to a pod that is not
	// being deleted. It is false for a pod that this part does not know, and as soon as the part
	// has applied the deletion. It must not block.
	Routed(pod types.UID) bool
	// Follow calls released for each pod for which Routed becomes false, until ctx ends. Additional calls are harmless.
	Follow(ctx context.Context, released func(pod types.UID))
}

// DrainTimeouts is a part of the data plane that sets how long deleted pods wait: a gateway with InferencePools.
type DrainTimeouts interface {
	// DrainTimeout is the longest wait for a pod when it is deleted; nil: this part sets none. It must not block.
	// Follow calls released when it changes for a pod that has left.
	DrainTimeout(pod types.UID) *time.Duration
}

// drainTimeout returns what the parts of the data plane set for a pod: the longest; nil if no part can set one.
func drainTimeout(parts []Traffic) func(types.UID) *time.Duration {
	var all []DrainTimeouts
	for _, p := range parts {
		if d, ok := p.(DrainTimeouts); ok {
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return func(pod types.UID) (out *time.Duration) {
		for _, d := range all {
			if t := d.DrainTimeout(pod); t != nil && (out == nil || *t > *out) {
				out = t
			}
		}
		return out
	}
}

// drained checks whether the parts of the data plane have released pods, and then whether the connections that had been
// opened before are accepted.
type drained struct {
	parts  []Traffic
	queues Traffic // may be nil

	mu  sync.Mutex
	was map[types.UID]bool // pods that some part sent connections to, until queues has released them, too
}

// mostDrained limits how many pods are kept after their last check.
const mostDrained = 10_000

// routed returns the check; nil if there are no parts.
func routed(parts []Traffic, queues Traffic) func(types.UID) bool {
	if len(parts) == 0 {
		return nil
	}
	d := &drained{parts: parts, queues: queues, was: map[types.UID]bool{}}
	return d.routed
}

// routed checks queues only for pods to which a part sent connections, after all parts have stopped routing to them.
func (d *drained) routed(pod types.UID) bool {
	sent := slices.ContainsFunc(d.parts, func(t Traffic) bool { return t.Routed(pod) })
	if d.queues == nil {
		return sent
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case sent:
		if len(d.was) >= mostDrained {
			clear(d.was)
		}
		d.was[pod] = true
		return true
	case d.was[pod] && d.queues.Routed(pod):
		return true
	}
	delete(d.was, pod)
	return false
}
