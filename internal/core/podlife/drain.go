package podlife

import (
	"fmt"
	"time"

	"carob/internal/core/podstatus"
)

// settleTime is how long the containers continue to run after the data plane has stopped routing to the pod and the
// accept queues of its listeners are empty: programs still read the requests of connections that they have just
// accepted. If the queues cannot be read, it also covers the connections in them.
const settleTime = 100 * time.Millisecond

// awaitDrain delays the end of a deleted pod until no part of the data plane opens new connections to it as if it
// were not being deleted. Until then neither the preStop hook nor a signal reaches a container (N8.13, N8.14). So a
// program that stops at once on SIGTERM drops no request. The wait counts towards the grace period: it takes at most
// half of it, and at most Node.DrainTimeout, or the time that the pod's InferencePools or the pod itself set
// (DrainAnnotation), which may change during the wait. A pod to which no data plane routes does not wait (N8.15);
// neither does a pod that ends for another reason than its deletion.
//
//	deleted ──routed──▶ routed ──no longer routed──▶ settling ──settleTime──▶ drained
//	   │                   └────────── time is up ──────┴──────────────────────▲
//	   └──not routed, nothing runs, another cause──────────────────────────────┘
func (m *machine) awaitDrain() (waits bool) {
	end := &m.s.End
	if end.Drained {
		return false
	}
	bound := m.in.Node.DrainTimeout
	if pools := m.in.DrainTimeout; pools != nil {
		bound = *pools
	}
	if own, ok, err := DrainTimeout(m.pod.Annotations); ok && err == nil {
		bound = own
	}
	until := end.Since.Add(min(bound, end.Grace/2))
	if m.in.Routed && !end.Settles.IsZero() {
		end.Settles = time.Time{} // a Service selects the pod again
	}
	if !m.in.Routed && end.Routed && end.Settles.IsZero() {
		end.Settles = m.now.Add(settleTime)
	}
	end.Routed = end.Routed || m.in.Routed
	if end.Routed && !m.in.Routed && end.Settles.Before(until) {
		until = end.Settles
	}
	if !end.Routed || m.in.Gone || end.NoHooks || end.Stopped || podstatus.Terminal(end.Phase) ||
		m.pod.DeletionTimestamp == nil || !m.now.Before(until) || !m.anyRuns() {
		end.Drained = true
		return false
	}
	m.wait(Wait{For: "traffic", Object: "Services", Since: end.Since, Until: until})
	return true
}

// DrainAnnotation sets how long a deleted pod waits for the data plane at most, instead of Node.DrainTimeout: a
// duration such as 5m, for responses that take long; 0s means no wait. On an InferencePool it applies to the pods of
// the pool that do not have it.
const DrainAnnotation = "carob.dev/deletion-drain-timeout"

// DrainTimeout reads DrainAnnotation; false if there is none. The caller treats an error as if there were none.
func DrainTimeout(annotations map[string]string) (time.Duration, bool, error) {
	text, ok := annotations[DrainAnnotation]
	if !ok {
		return 0, false, nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = fmt.Errorf("%q is negative", text)
	}
	return max(d, 0), true, err
}

// anyRuns reports whether any container of the pod may have a process.
func (m *machine) anyRuns() bool {
	for i := range m.in.Observed.Containers {
		if mayHaveProcess(&m.in.Observed.Containers[i]) {
			return true
		}
	}
	return false
}
