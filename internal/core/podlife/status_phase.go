package podlife

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podstatus"
)

// setPhase decides the phase (L4.3–L4.7) and holds a terminal one back while a
// container may run (L4.59).
func (m *machine) setPhase(st *corev1.PodStatus) {
	old := &m.s.Last
	api := &m.pod.Status
	if podstatus.Terminal(old.Phase) { // never left (L4.4, L4.7)
		st.Phase, st.Reason, st.Message = old.Phase, old.Reason, old.Message
		return
	}
	if podstatus.Terminal(api.Phase) {
		st.Phase, st.Reason, st.Message = api.Phase, api.Reason, api.Message
		return
	}
	ended := m.ended()
	phase := m.phaseOf(ended)
	if ended {
		end := &m.s.End
		switch {
		case end.Phase != "":
			st.Phase, st.Reason, st.Message = end.Phase, end.Reason, end.Message
			return
		case !podstatus.Terminal(phase) && m.s.Life == Terminated && !m.isStatic():
			phase = corev1.PodFailed // L4.66
		}
	}
	if podstatus.Terminal(phase) && !ended {
		phase = old.Phase
		if phase == "" {
			phase = corev1.PodPending
		}
	}
	st.Phase = phase
	if phase == old.Phase { // L4.5
		st.Reason, st.Message = cmp.Or(old.Reason, api.Reason), cmp.Or(old.Message, api.Message)
	}
}

// ended reports whether no container of the pod runs or will run. A pod that is being deleted has
// ended when its sandboxes are stopped too (L7.25).
func (m *machine) ended() bool {
	switch m.s.Life {
	case Syncing:
		return false
	case Terminated, Finished:
		return true
	case Terminating:
	}
	if m.pod.DeletionTimestamp != nil || m.inFlight(opStart, "") != nil || m.in.Observed.Devices.Held {
		return false
	}
	for i := range m.in.Observed.Containers {
		if mayHaveProcess(&m.in.Observed.Containers[i]) {
			return false
		}
	}
	return true
}

// phaseOf returns the phase that follows from the container statuses (L4.15–L4.18). ended is the
// terminal flag of the specification.
func (m *machine) phaseOf(ended bool) corev1.PodPhase {
	var pendingInit, failedInit, pendingSidecar int
	var unknown, running, waiting, stopped, succeeded, final int
	for i := range m.containers {
		c := &m.containers[i]
		s := c.entry
		switch c.class {
		case initial:
			end := shownEnd(s)
			switch {
			case end == nil && s.State.Terminated == nil:
				pendingInit++
			case end != nil && end.ExitCode != 0 && !m.restartsAs(c, end):
				failedInit++
			}
		case sidecar:
			switch {
			case s.State.Running != nil:
				running++
				if s.Started == nil || !*s.Started {
					pendingSidecar++
				}
			case s.State.Waiting != nil && s.LastTerminationState.Terminated == nil:
				pendingSidecar++
				waiting++
			}
		case regular:
			switch end := shownEnd(s); {
			case s.State.Running != nil:
				running++
			case end != nil:
				stopped++
				if s.State.Terminated != nil && end.ExitCode == 0 {
					succeeded++
				}
				if !m.restartsAs(c, end) {
					final++
				}
			case s.State.Waiting != nil:
				waiting++
			default:
				unknown++
			}
		case ephemeral, volume:
		}
	}
	switch {
	case failedInit > 0:
		return corev1.PodFailed
	case pendingInit > 0 || pendingSidecar > 0 && !m.regularBegun() || waiting > 0:
		return corev1.PodPending
	case running > 0 && unknown == 0:
		return corev1.PodRunning
	case running == 0 && stopped > 0 && unknown == 0:
		if ended && !m.isStatic() {
			if stopped == succeeded {
				return corev1.PodSucceeded
			}
			return corev1.PodFailed
		}
		switch {
		case stopped != final:
			return corev1.PodRunning
		case stopped == succeeded:
			return corev1.PodSucceeded
		}
		return corev1.PodFailed
	}
	return corev1.PodPending
}

// shownEnd returns the termination that a status shows: the present one, or the last one of a
// container that waits.
func shownEnd(s *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if s.State.Terminated != nil {
		return s.State.Terminated
	}
	if s.State.Waiting != nil {
		return s.LastTerminationState.Terminated
	}
	return nil
}

// restartsAs applies the restart rules to a termination in a status.
func (m *machine) restartsAs(c *podContainer, t *corev1.ContainerStateTerminated) bool {
	e := exit{code: t.ExitCode, reason: t.Reason}
	if actual, ok := m.lastExit(c); ok && actual.code == t.ExitCode {
		e.id = actual.id
	}
	return m.restarts(c, e)
}
