package podlife

import (
	"fmt"
	"time"

	"carob/internal/core/podlife/restart"
)

// settle defines how long a failure stays visible before the status shows the back-off: Error
// before CrashLoopBackOff (L11.3), ErrImagePull before ImagePullBackOff (L11.6).
const settle = time.Second

// due reports whether a start of c is wanted, back-off aside (L3.70, L3.71).
func (m *machine) due(c *podContainer) bool {
	if c.newest != nil {
		switch c.newest.State {
		case ContainerRunning:
			return false
		case ContainerCreated, ContainerUnknown:
			return c.class != ephemeral
		case ContainerExited:
		}
	}
	if c.class == initial && (c.newest == nil || m.sandbox != nil && m.here(c) == nil) {
		return true // independent of its exit in an earlier sandbox, init starts over in this one (L3.62)
	}
	e, ended := m.lastExit(c)
	if c.class == ephemeral {
		return c.newest == nil && !ended
	}
	return !ended || m.restarts(c, e)
}

// restarts reports whether a container that ended may run again (L3.70).
func (m *machine) restarts(c *podContainer, e exit) bool {
	if c.class == sidecar || e.id != "" && c.record.Replace == e.id {
		return true
	}
	if e.reason == reasonRestartingAll {
		return true
	}
	return restart.Allowed(c.spec, m.pod.Spec.RestartPolicy, e.code)
}

// noteEnds records when containers ended, on the clock of Step, and forgets back-offs of another
// definition.
func (m *machine) noteEnds() {
	for i := range m.containers {
		c := &m.containers[i]
		e, has := m.lastExit(c)
		if !has || e.id == "" {
			continue
		}
		if def := restart.Definition(c.spec); c.record.Crash.Granted != e.id && c.record.Crash.Definition != def {
			c.record.Crash = restart.Backoff{Definition: def}
		}
		if c.record.Ended.ID != e.id {
			c.record.Ended = observedExit{ID: e.id, At: m.stepTime(e.finished)}
		}
	}
}

// crashWait reports whether c must still back off from its last exit, and until when.
func (m *machine) crashWait(c *podContainer) (until time.Time, waits bool) {
	e, has := m.lastExit(c)
	if !has || e.id == "" || c.record.Crash.Granted == e.id {
		return time.Time{}, false
	}
	until = c.record.Ended.At.Add(c.record.Crash.After(c.record.Ended.At, m.crashLimit()))
	return until, m.now.Before(until)
}

// grantRestart records that c may run again after its last exit, so that one exit counts once
// (L3.75).
func (m *machine) grantRestart(c *podContainer) {
	e, has := m.lastExit(c)
	if !has || e.id == "" || c.record.Crash.Granted == e.id {
		return
	}
	c.record.Crash.Grant(e.id, c.record.Ended.At, m.now, m.crashLimit())
}

func (m *machine) crashLimit() time.Duration { return restart.Limit(m.in.Node.CrashBackoffMax) }

// reportCrash shows the back-off after the exit itself was visible (L3.76).
func (m *machine) reportCrash(c *podContainer, until time.Time) {
	e, _ := m.lastExit(c)
	ended := c.record.Ended.At
	m.wait(Wait{For: "back-off", Object: c.spec.Name, Since: ended, Until: until,
		LastErr: fmt.Sprintf("exit code %d (%s)", e.code, e.reason)})
	m.lookBy(until) // the image may have been removed meanwhile
	if visible := ended.Add(settle); m.now.Before(visible) {
		m.wake(visible)
		return
	}
	if c.record.Crash.Reported == e.id {
		return
	}
	c.record.Crash.Reported = e.id
	ref := m.podRef()
	c.record.Waiting = waitingReason{
		Reason: "CrashLoopBackOff",
		Message: fmt.Sprintf("back-off %v restarting failed container=%s pod=%s", c.record.Crash.Delay, c.spec.Name,
			ref),
		At: m.now,
	}
	m.warning(c, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.spec.Name, ref))
}
