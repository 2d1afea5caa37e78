package podlife

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Crash back-off (L3.75, L0.37).
const (
	backoffInitial = 10 * time.Second
	backoffMax     = 300 * time.Second
)

// settle is how long a failure stays visible before the status says that the
// pod backs off from it: Error before CrashLoopBackOff (L11.3), ErrImagePull
// before ImagePullBackOff (L11.6).
const settle = time.Second

// crashBackoff is the memory of a container's restarts.
type crashBackoff struct {
	Delay      time.Duration // wait after the next exit; zero: none
	At         time.Time     // the last decision to restart
	Granted    string        // the exit it was about
	Told       string        // the exit whose back-off was announced
	Definition string        // image and resources it holds for; others start over
}

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
		return true // however it ended in a sandbox before, init starts over in this one (L3.62)
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
	if p := c.spec.RestartPolicy; p != nil {
		for i := range c.spec.RestartPolicyRules {
			if r := &c.spec.RestartPolicyRules[i]; ruleMatches(r, e.code) {
				return r.Action == corev1.ContainerRestartRuleActionRestart ||
					r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
			}
		}
		return policyAllows(string(*p), e.code)
	}
	return policyAllows(string(m.pod.Spec.RestartPolicy), e.code)
}

func ruleMatches(r *corev1.ContainerRestartRule, code int32) bool {
	if r.ExitCodes == nil {
		return false
	}
	listed := slices.Contains(r.ExitCodes.Values, code)
	if r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpNotIn {
		return !listed
	}
	return listed
}

func policyAllows(policy string, code int32) bool {
	switch policy {
	case string(corev1.RestartPolicyNever):
		return false
	case string(corev1.RestartPolicyOnFailure):
		return code != 0
	}
	return true
}

// restartsAfterProbe is the restart rule of a container killed by a probe: its
// policy alone, not its rules (L3.68).
func (m *machine) restartsAfterProbe(c *podContainer) bool {
	if p := c.spec.RestartPolicy; p != nil {
		return *p != corev1.ContainerRestartPolicyNever
	}
	return m.pod.Spec.RestartPolicy != corev1.RestartPolicyNever
}

// noteEnds notes when the containers that have ended did so, on the clock of Step, and
// forgets back-offs that held for another definition.
func (m *machine) noteEnds() {
	for i := range m.containers {
		c := &m.containers[i]
		e, has := m.lastExit(c)
		if !has || e.id == "" {
			continue
		}
		if def := crashDefinition(c.spec); c.record.Crash.Granted != e.id && c.record.Crash.Definition != def {
			c.record.Crash = crashBackoff{Definition: def}
		}
		if c.record.Ended.ID != e.id {
			c.record.Ended = observedExit{ID: e.id, At: m.stepTime(e.finished)}
		}
	}
}

// crashLimit is the cap of the crash back-off (L3.75, L3.78).
func (m *machine) crashLimit() time.Duration {
	if limit := m.in.Node.CrashBackoffMax; limit > 0 {
		return limit
	}
	return backoffMax
}

// crashDelay is how long c must rest after its last exit: not at all when it has run for
// long before that.
func (m *machine) crashDelay(c *podContainer) time.Duration {
	if b := &c.record.Crash; c.record.Ended.At.Sub(b.At) <= 2*m.crashLimit() {
		return b.Delay
	}
	return 0
}

// crashWait reports whether c must still back off from its last exit, and until when.
func (m *machine) crashWait(c *podContainer) (until time.Time, waits bool) {
	e, has := m.lastExit(c)
	if !has || e.id == "" || c.record.Crash.Granted == e.id {
		return time.Time{}, false
	}
	until = c.record.Ended.At.Add(m.crashDelay(c))
	return until, m.now.Before(until)
}

// grantRestart notes that c may run again after its last exit, so that one exit is
// counted once (L3.75).
func (m *machine) grantRestart(c *podContainer) {
	e, has := m.lastExit(c)
	b := &c.record.Crash
	if !has || e.id == "" || b.Granted == e.id {
		return
	}
	limit := m.crashLimit()
	if delay := m.crashDelay(c); delay == 0 {
		b.Delay = min(backoffInitial, limit)
	} else {
		b.Delay = min(2*delay, limit)
	}
	b.Granted, b.At = e.id, m.now
}

// tellCrash makes the back-off visible once the exit itself has been (L3.76).
func (m *machine) tellCrash(c *podContainer, until time.Time) {
	e, _ := m.lastExit(c)
	ended := c.record.Ended.At
	m.wait(Wait{For: "back-off", Object: c.spec.Name, Since: ended, Until: until,
		LastErr: fmt.Sprintf("exit code %d (%s)", e.code, e.reason)})
	m.lookBy(until) // the image may have been removed meanwhile
	if visible := ended.Add(settle); m.now.Before(visible) {
		m.wake(visible)
		return
	}
	if c.record.Crash.Told == e.id {
		return
	}
	c.record.Crash.Told = e.id
	ref := m.podRef()
	c.record.Waiting = waitingReason{
		Reason: "CrashLoopBackOff",
		Message: fmt.Sprintf("back-off %v restarting failed container=%s pod=%s", c.record.Crash.Delay, c.spec.Name,
			ref),
		At: m.now,
	}
	m.warning(c, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.spec.Name, ref))
}

// crashDefinition names what the crash back-off of a container holds for (L3.75).
func crashDefinition(c *corev1.Container) string {
	if len(c.Resources.Limits) == 0 && len(c.Resources.Requests) == 0 {
		return c.Image
	}
	b := append([]byte(c.Image), 0)
	b = appendResources(b, c.Resources.Limits)
	b = append(b, 0)
	b = appendResources(b, c.Resources.Requests)
	return string(b)
}

// appendResources writes a resource list in an order that does not depend on the map's.
func appendResources(b []byte, l corev1.ResourceList) []byte {
	for _, n := range slices.Sorted(maps.Keys(l)) {
		q := l[n]
		b = append(b, n...)
		b = append(b, '=')
		b = append(b, q.String()...)
		b = append(b, ' ')
	}
	return b
}
