package podlife

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife/restart"
)

// restartingAll is the state of an in-place restart of all containers (L3.80).
//
//	idle ──a rule RestartAllContainers matches an exit──▶ active ──all removed──▶ idle
//
// It is active as long as an instance that triggered it exists: triggers are
// removed last, so that an agent that starts in between goes on with the reset.
type restartingAll struct {
	Active bool
	Since  time.Time
}

// restartAll stops and removes all containers but ephemeral ones when one ended with an exit
// code that requires it. Sandbox, addresses and volumes stay. It returns true while it is in
// progress.
func (m *machine) restartAll() bool {
	r := &m.s.RestartAll
	if !m.anyTrigger() {
		r.Active = false
		return false
	}
	if !r.Active {
		*r = restartingAll{Active: true, Since: m.now}
		m.resetting = true // what vanished before is reset now: nothing else may have to be removed but the trigger
	}
	busy := false
	for i := range m.s.InFlight {
		f := &m.s.InFlight[i]
		switch c := m.container(f.Object); {
		case f.Op != opPull && f.Op != opStart && f.Op != opPostStart || c != nil && c.class == ephemeral:
		default:
			m.cancel(f)
			busy = true
		}
	}
	m.out.Waits = append(m.out.Waits, Wait{For: "restart of all containers", Since: r.Since})
	m.stopResetContainers(&busy)
	m.advanceStops(false)
	if busy || m.removeResetContainers(false) {
		return true
	}
	m.removeResetContainers(true)
	return true
}

// stopResetContainers kills without hooks and without grace period (L3.80, L6.5).
func (m *machine) stopResetContainers(busy *bool) {
	for i := range m.in.Observed.Containers {
		o := &m.in.Observed.Containers[i]
		if c := m.container(o.Name); mayHaveProcess(o) && (c == nil || c.class != ephemeral) {
			*busy = true
			m.stop(o, c, stopOrder{message: "killing", cause: "all containers restart", noHook: true})
		}
	}
}

// removeResetContainers removes the instances that triggered the reset, or the
// others; true while some are left.
func (m *machine) removeResetContainers(triggers bool) (left bool) {
	for i := range m.in.Observed.Containers {
		o := &m.in.Observed.Containers[i]
		c := m.container(o.Name)
		if c != nil && c.class == ephemeral || triggers != (c != nil && c.newest == o && m.triggers(c)) {
			continue
		}
		left = true
		m.remove(o, false, "all containers restart")
	}
	return left
}

// resetRuns reports whether a container that the reset stops may still have a process. Until none has, the others keep
// their ends: an init container whose instance vanished before does not wait again while those after it run (L3.72).
func (m *machine) resetRuns() bool {
	for i := range m.containers {
		if c := &m.containers[i]; c.class != ephemeral && c.newest != nil && mayHaveProcess(c.newest) {
			return true
		}
	}
	return false
}

// triggers reports whether the last exit of c requires a restart of all containers.
func (m *machine) triggers(c *podContainer) bool {
	if c.class == ephemeral || c.newest == nil || c.newest.State != ContainerExited || c.record.Replace == c.newest.ID {
		return false
	}
	r := restart.Rule(c.spec, c.newest.ExitCode)
	return r != nil && r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

func (m *machine) anyTrigger() bool {
	for i := range m.containers {
		if m.triggers(&m.containers[i]) {
			return true
		}
	}
	return false
}

// resetStatus returns the status entry of a container that the reset removed.
func (m *machine) resetStatus(s, old *corev1.ContainerStatus) {
	s.State = corev1.ContainerState{Waiting: m.defaultWaiting(old)}
	end := &corev1.ContainerStateTerminated{ExitCode: unknownExitCode, Reason: reasonRestartingAll,
		Message: "The container is removed because RestartAllContainers in place"}
	if t := shownEnd(old); t != nil && t.ContainerID == old.ContainerID && !m.s.RestartAll.Active {
		end.ContainerID, end.FinishedAt = t.ContainerID, t.FinishedAt // the trigger: its crash back-off counts this end
	}
	s.LastTerminationState = corev1.ContainerState{Terminated: end}
	s.RestartCount = old.RestartCount + 1
	s.ContainerID, s.ImageID = "", ""
}
