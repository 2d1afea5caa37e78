package pods

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/resources"
)

// A resize that was granted is a claim until the owner has taken it over: it counts
// for the admission of all others from the moment of the grant, so that two concurrent resizes never get the same
// resources.

// admitResize implements nodeRoom (L3.120).
func (m *Manager) admitResize(pod *corev1.Pod) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[pod.UID]
	if e == nil {
		return Result{Err: &podlife.Failure{Reason: podlife.Aborted, Message: "the pod is gone"}}
	}
	if m.cfg.Infeasible != nil {
		if why := m.cfg.Infeasible(pod, e.runs()); why != "" {
			return Result{Err: &podlife.Failure{Reason: corev1.PodReasonInfeasible, Message: why, Permanent: true}}
		}
	}
	if r := m.claim(e, pod); r != nil {
		return Result{Err: &podlife.Failure{Reason: r.Reason, Message: r.Message}}
	}
	return Result{}
}

// claim grants the pod the resources that its spec requests, if the node has them; with m.mu held.
func (m *Manager) claim(e *entry, pod *corev1.Pod) *podlife.Rejection {
	r := m.cfg.Admit(pod, m.active(pod.UID)).Rejection
	if e.claim = nil; r == nil {
		e.claim = pod
	}
	return r
}

// claimed is the pod with the resources granted to it, until its owner has applied them; m.mu is held.
func (e *entry) claimed(runs *corev1.Pod) *corev1.Pod {
	if c := e.claim; c != nil && (runs != nil && runs.Generation >= c.Generation || e.pod.Generation != c.Generation) {
		e.claim = nil // taken over, or overtaken by a newer spec
	}
	return e.claim
}

// timesFreed implements nodeRoom.
func (m *Manager) timesFreed() int64 { return m.vacated.Load() }

// freed implements nodeRoom.
func (m *Manager) freed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.makeRoom()
}

// makeRoom assigns freed resources to the pods that wait to start, then to the pods that wait for a resize, in their
// order (L3.123), and wakes all of them; m.mu is held.
func (m *Manager) makeRoom() {
	m.vacated.Add(1)
	for _, e := range m.waitingForRoom() {
		m.admit(e)
	}
	type waiter struct {
		resources.Resize
		entry *entry
	}
	var waiters []waiter
	for _, e := range m.entries {
		if e.owner == nil {
			continue
		}
		v := e.published.view()
		if !slices.ContainsFunc(v.Waits, func(w podlife.Wait) bool { return w.For == "resize" }) {
			continue
		}
		e.owner.post(func(*mailbox) {})
		if since, ok := deferredSince(&v.Status); ok && e.claimed(v.runs) == nil {
			waiters = append(waiters, waiter{resources.Resize{Wanted: e.pod, Held: e.runs(), Since: since}, e})
		}
	}
	slices.SortFunc(waiters, func(a, b waiter) int { return resources.CompareResizes(a.Resize, b.Resize) })
	for _, w := range waiters {
		m.claim(w.entry, w.Wanted)
	}
}

// waitingForRoom returns the pods that wait for resources, in the order in which they arrived.
func (m *Manager) waitingForRoom() []*entry {
	var all []*entry
	for _, e := range m.entries {
		if e.hold != nil {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.turn, b.turn) })
	return all
}

func deferredSince(st *corev1.PodStatus) (time.Time, bool) {
	for i := range st.Conditions {
		if c := &st.Conditions[i]; c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonDeferred {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}
