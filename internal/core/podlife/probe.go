package podlife

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife/probes"
	"carob/internal/core/podstatus"
)

// carryOver is how long before the agent's start a container must have been
// running to keep its verdicts (L4.42, L5.12).
const carryOver = 10 * time.Second

// The probes of a container have fixed positions in its record.
func probeIndex(t ProbeType) int {
	switch t {
	case Liveness:
		return 0
	case Readiness:
		return 1
	default:
		return 2
	}
}

func (c *podContainer) probe(t ProbeType) *probes.Record { return &c.record.Probes[probeIndex(t)] }

func (c *podContainer) probeSpec(t ProbeType) *corev1.Probe {
	switch t {
	case Liveness:
		return c.spec.LivenessProbe
	case Readiness:
		return c.spec.ReadinessProbe
	default:
		return c.spec.StartupProbe
	}
}

// verdict returns the published result of a probe for the instance that runs now.
func (c *podContainer) verdict(t ProbeType) probes.Result {
	if p := c.probe(t); c.newest != nil && p.ContainerID == c.newest.ID && c.probeSpec(t) != nil {
		return p.Result
	}
	return probes.None
}

// started reports whether the running instance of c counts as started (L4.40). A postStart hook
// in progress belongs to the start.
func (m *machine) started(c *podContainer) bool {
	if !c.running() || m.hooked(c) {
		return false
	}
	if c.spec.StartupProbe == nil {
		return true
	}
	switch c.verdict(Startup) {
	case probes.Success:
		return true
	case probes.None:
		return m.carried(c) && c.old != nil && c.old.Started != nil && *c.old.Started
	default:
		return false
	}
}

// hooked reports whether the postStart hook of the running instance of c has not ended, or has failed. While the start
// is in flight, the hook has not begun: the runtime may show that the container runs before its call has returned.
func (m *machine) hooked(c *podContainer) bool {
	if c.record.PostStart.ContainerID == c.newest.ID {
		return true
	}
	if c.spec.Lifecycle == nil || c.spec.Lifecycle.PostStart == nil {
		return false
	}
	f := m.inFlight(opStart, c.spec.Name)
	return f != nil && int(f.Attempt) == c.newest.Attempt
}

// ready reports whether a regular container or a sidecar is ready (L4.41, L4.42).
func (m *machine) ready(c *podContainer) bool {
	if !m.started(c) {
		return false
	}
	if c.spec.ReadinessProbe == nil {
		return true
	}
	switch c.verdict(Readiness) {
	case probes.Success:
		return true
	case probes.None:
		return m.carried(c) && podstatus.ConditionTrue(m.pod.Status.Conditions, corev1.PodReady)
	default:
		return false
	}
}

// carried reports whether the instance was running long before the agent started. After a clock
// was set back, newer instances look older, so they count, too.
func (m *machine) carried(c *podContainer) bool {
	return c.running() && c.record.Adopted == c.newest.ID &&
		c.newest.StartedAt.Before(m.in.Node.AgentStarted.Add(-carryOver))
}

// cancelProbes ends the probes of containers that have ended.
func (m *machine) cancelProbes() {
	for i := range m.s.InFlight {
		if f := &m.s.InFlight[i]; f.Op == opProbe {
			if c := m.container(f.Object); c == nil || !c.running() {
				m.cancel(f)
			}
		}
	}
}

// applyProbe counts one finished run (L5.15, L5.16, L5.30, L5.31).
func (m *machine) applyProbe(r *ProbeResult) {
	c := m.container(r.Container)
	if c == nil {
		return
	}
	p, spec := c.probe(r.Type), c.probeSpec(r.Type)
	if spec == nil || p.ContainerID != r.ContainerID || p.Held || !c.running() || c.newest.ID != r.ContainerID {
		return
	}
	raw := probes.Success
	switch r.Verdict {
	case ProbeSuccess:
	case ProbeError:
		if !p.Errored(m.now) {
			m.warning(c, "Unhealthy",
				fmt.Sprintf("%s probe errored and resulted in unknown state: %s", r.Type, r.Output))
		}
		return
	case ProbeFailure:
		raw = probes.Failure
		m.warning(c, "Unhealthy", fmt.Sprintf("%s probe failed: %s", r.Type, r.Output))
	case ProbeWarning:
		m.warning(c, "ProbeWarning", fmt.Sprintf("%s probe warning: %s", r.Type, r.Output))
	}
	if p.Ran(spec, raw) && (r.Type == Startup || r.Type == Liveness && raw == probes.Failure) {
		p.Hold()
	}
}

// runProbes begins the probes that are due and sets the time of the next ones.
func (m *machine) runProbes() {
	if m.s.Life == Terminated || m.s.Life == Finished {
		return
	}
	for i := range m.containers {
		c := &m.containers[i]
		if c.class != regular && c.class != sidecar || !c.running() {
			continue
		}
		for _, t := range [...]ProbeType{Startup, Readiness, Liveness} {
			if spec := c.probeSpec(t); spec != nil && (m.s.Life == Syncing || m.probesWhileEnding(c.spec.Name, t)) {
				m.runProbe(c, t, spec)
			}
		}
	}
}

func (m *machine) runProbe(c *podContainer, t ProbeType, spec *corev1.Probe) {
	p := c.probe(t)
	period := probes.Period(spec)
	if p.ContainerID != c.newest.ID {
		m.resetProbe(c, t, spec, period)
	}
	if p.Held || (t == Startup) == m.started(c) || m.hooked(c) {
		return
	}
	if m.flightAt(place{opProbe, c.spec.Name, string(t)}) != nil {
		m.wake(p.Next) // also when its result did not cause a Step
		return
	}
	if m.now.Before(p.Next) {
		m.wake(p.Next)
		return
	}
	p.Begin(m.now, period)
	m.wake(p.Next)
	var steady time.Time
	if p.Steady() && m.s.Life == Syncing {
		steady = p.Next
	}
	m.begin(RunProbe{Container: c.spec.Name, ContainerID: c.newest.ID, Type: t, Probe: spec, PodIP: m.podIP(),
		Try: int(p.Runs), Steady: steady},
		"period "+period.String())
}

// resetProbe starts over for a new instance; the consecutive count stays (L5.12).
func (m *machine) resetProbe(c *podContainer, t ProbeType, spec *corev1.Probe, period time.Duration) {
	result := probes.Unknown
	switch t {
	case Liveness:
		result = probes.Success
	case Readiness:
		result = probes.Failure
	case Startup:
	}
	next := m.stepTime(c.newest.StartedAt).Add(time.Duration(spec.InitialDelaySeconds) * time.Second)
	if m.carried(c) {
		result = probes.None
	}
	if begun := m.in.Node.AgentStarted; c.newest.StartedAt.Before(begun) {
		// This spreads the probes of a node after the agent starts (L5.11).
		if first := begun.Add(probes.Spread(string(m.pod.UID), c.spec.Name, string(t), period)); first.After(next) {
			next = first
		}
	}
	c.probe(t).Reset(c.newest.ID, result, next)
}

// probesWhileEnding reports whether a probe runs while the pod ends: readiness until a container
// has stopped, and all probes of sidecars (L5.33).
func (m *machine) probesWhileEnding(container string, t ProbeType) bool {
	c := m.container(container)
	return c != nil && (t == Readiness || c.class == sidecar)
}
