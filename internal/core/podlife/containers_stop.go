package podlife

import (
	"slices"
	"time"
)

// minStopGrace is the shortest grace period that is passed to a runtime (L0.39, L6.14).
const minStopGrace = 2 * time.Second

// containerStop is the state of the stop of one container (L6.8).
//
//	begun ──no preStop, or no time──▶ turn ──its turn, or no time──▶ signalled ──exit──▶ (forgotten)
//	  └──preStop──▶ hook ──ended or time is up──▶ turn
type containerStop struct {
	ContainerID string
	Cause       string
	Since       time.Time
	Deadline    time.Time // when the grace is over; may only come nearer
	Hook        bool      // preStop has begun, or is not needed
	Signalled   time.Time // the Deadline when StopContainer began
	Kill        time.Time // when the runtime will kill
}

// stopOrder is an order to stop a container.
type stopOrder struct {
	message string // of the Killing event
	cause   string
	grace   time.Duration
	noHook  bool
}

// stop begins to stop an instance, or brings the deadline of its stop nearer.
func (m *machine) stop(inst *Container, c *podContainer, k stopOrder) {
	deadline := m.now.Add(k.grace)
	if s := m.stopOf(inst.ID); s != nil {
		if deadline.Before(s.Deadline) {
			s.Deadline = deadline
		}
		return
	}
	hook := c != nil && c.class != ephemeral && c.spec.Lifecycle != nil && c.spec.Lifecycle.PreStop != nil &&
		inst.State == ContainerRunning && !k.noHook && k.grace > 0
	m.addStop(containerStop{ContainerID: inst.ID, Cause: k.cause, Since: m.now, Deadline: deadline, Hook: !hook})
	if c != nil {
		m.normal(c, "Killing", k.message)
	}
}

// alive reports whether an instance may still have a process.
func (m *machine) alive(id string) bool {
	inst := m.instance(id)
	return inst != nil && mayHaveProcess(inst)
}

func mayHaveProcess(c *Container) bool {
	return c.State == ContainerRunning || c.State == ContainerUnknown
}

// forgetStops drops the stops of containers that have ended.
func (m *machine) forgetStops() {
	m.s.Stops = slices.DeleteFunc(m.s.Stops, func(s containerStop) bool {
		if m.alive(s.ContainerID) {
			return false
		}
		m.cancel(m.inFlight(opPreStop, s.ContainerID))
		m.succeeded(opStop, s.ContainerID)
		return true
	})
	m.find.stops = nil
}

// stopAll orders every container of the pod to stop. It returns true while one may run.
func (m *machine) stopAll(cause string, grace time.Duration, noHook bool) bool {
	running := false
	for i := range m.in.Observed.Containers {
		o := &m.in.Observed.Containers[i]
		if !mayHaveProcess(o) {
			continue
		}
		running = true
		m.stop(o, m.container(o.Name),
			stopOrder{message: "Stopping container " + o.Name, cause: cause, grace: grace, noHook: noHook})
	}
	m.advanceStops(true)
	return running
}

// advanceStops advances every stop by one stage: hook, turn, signal. With ordered, sidecars wait
// for the containers they serve (L7.61).
func (m *machine) advanceStops(ordered bool) {
	for i := range m.s.Stops {
		s := &m.s.Stops[i]
		inst := m.instance(s.ContainerID)
		if inst == nil {
			continue
		}
		c := m.container(inst.Name)
		inTime := m.now.Before(s.Deadline)
		if !m.runPreStop(s, inst, c, inTime) {
			continue
		}
		if f := m.inFlight(opStop, inst.ID); f != nil {
			if s.Deadline.Before(s.Signalled) && m.now.Add(minStopGrace).Before(s.Kill) {
				m.cancel(f) // the grace was shortened: stop again with the remaining time
			}
			m.out.Waits = append(m.out.Waits, Wait{For: "grace", Object: inst.Name, Since: s.Since, Until: s.Kill})
			continue
		}
		if ordered && inTime && c != nil && c.class == sidecar && m.servesRunning(c) {
			m.wait(Wait{For: "turn", Object: inst.Name, Since: s.Since, Until: s.Deadline})
			continue
		}
		if r := m.resting(opStop, inst.ID); r != nil {
			m.waitOut(r, "stop", inst.Name)
			continue
		}
		spent := m.now.Sub(s.Since).Truncate(time.Second)
		grace := max(s.Deadline.Sub(s.Since)-spent, minStopGrace)
		s.Signalled, s.Kill = s.Deadline, m.now.Add(grace)
		m.begin(StopContainer{Container: inst.Name, ContainerID: inst.ID, Grace: grace}, s.Cause)
		m.out.Waits = append(m.out.Waits, Wait{For: "grace", Object: inst.Name, Since: s.Since, Until: s.Kill})
	}
}

// runPreStop runs the preStop hook of a stop; done: there is nothing left to wait for (L6.5, L6.6).
func (m *machine) runPreStop(s *containerStop, inst *Container, c *podContainer, inTime bool) (done bool) {
	if !s.Hook {
		s.Hook = true
		if inTime && c != nil && inst.State == ContainerRunning {
			m.begin(RunHook{Container: inst.Name, ContainerID: inst.ID, Kind: PreStop,
				Handler: c.spec.Lifecycle.PreStop,
				PodIP:   m.podIP(), Timeout: s.Deadline.Sub(m.now)}, s.Cause)
		}
	}
	f := m.inFlight(opPreStop, inst.ID)
	if f == nil || f.Cancelled {
		return true
	}
	if inTime {
		m.wait(Wait{For: "preStop", Object: inst.Name, Since: f.Since, Until: s.Deadline})
		return false
	}
	m.cancel(f) // its time is up
	return true
}

// servesRunning reports whether a container that sidecar c must outlive still runs:
// any regular container and every sidecar after it (L7.61, L7.62).
func (m *machine) servesRunning(c *podContainer) bool {
	after := false
	for i := range m.containers {
		o := &m.containers[i]
		if o == c {
			after = true
			continue
		}
		if (o.class == regular || o.class == sidecar && after) && o.newest != nil && mayHaveProcess(o.newest) {
			return true
		}
	}
	return false
}

// podGrace is the grace of a container that is killed while its pod continues (L6.12).
func (m *machine) podGrace() time.Duration {
	if g := m.pod.DeletionGracePeriodSeconds; g != nil {
		return seconds(*g)
	}
	if g := m.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return seconds(*g)
	}
	return minStopGrace
}

// remove removes an instance that does not run.
func (m *machine) remove(inst *Container, logs bool, cause string) {
	m.try(RemoveContainer{Container: inst.Name, ContainerID: inst.ID, Logs: logs}, cause, "removal", inst.Name)
}
