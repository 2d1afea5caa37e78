package podlife

import (
	"fmt"
	"time"
)

// settleTime is how long the containers continue to run after the data plane has stopped routing
// to the pod and the queues of its listeners are empty: programs read the requests of
// connections that they have just accepted. If the queues cannot be read, it is also the time
// for connections in them.
const settleTime = 100 * time.Millisecond

// awaitDrain has the end of a deleted pod wait for the data plane: until no part of it opens
// new connections to the pod as to one that goes on, neither preStop hook nor signal reaches a container
// (N8.13, N8.14). So a program that stops at once on SIGTERM drops no request. The wait is part of the
// grace: it takes half of it at most, and never longer than Node.DrainTimeout, or what the pod's
// InferencePools or the pod itself say instead (DrainAnnotation), which may change during the wait. A pod that
// no data plane knows does not wait (N8.15), nor one that something else than its deletion ends.
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
		end.Settles = time.Time{} // a Service selects it again
	}
	if !m.in.Routed && end.Routed && end.Settles.IsZero() {
		end.Settles = m.now.Add(settleTime)
	}
	end.Routed = end.Routed || m.in.Routed
	if end.Routed && !m.in.Routed && end.Settles.Before(until) {
		until = end.Settles
	}
	if !end.Routed || m.in.Gone || end.NoHooks || end.Stopped || terminal(end.Phase) ||
		m.pod.DeletionTimestamp == nil || !m.now.Before(until) || !m.anyRuns() {
		end.Drained = true
		return false
	}
	m.wait(Wait{For: "traffic", Object: "Services", Since: end.Since, Until: until})
	return true
}

// DrainAnnotation of a pod is how long it waits for the data plane at most when it is deleted, instead of
// Node.DrainTimeout: a duration such as 5m, for answers that take long; 0s: it does not wait. That of an InferencePool
// holds for its pods that have none.
const DrainAnnotation = "carob.dev/deletion-drain-timeout"

// DrainTimeout reads DrainAnnotation; false: the object has none. With an error, it is treated as if it had none.
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
