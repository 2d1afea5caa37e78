package podlife

import corev1 "k8s.io/api/core/v1"

// initialize advances the init containers of the sandbox in use by one step and keeps the
// sidecars that have been started running (L3.72–L3.74).
//
// One mark tracks the progress: the last init container that has begun in this sandbox. Those
// before it are done, except sidecars, which are restarted whenever they end; the next one starts
// when the one at the mark has succeeded or, if it is a sidecar, has started.
func (m *machine) initialize() (initialized bool) {
	mark, inits := m.initMark()
	initialized = m.regularBegun()
	done := mark >= 0 && mark < inits && m.initDone(&m.containers[mark])
	for i := range inits {
		if c := &m.containers[i]; i < mark && c.class == sidecar {
			m.start(c, false, "sidecar ended")
		}
	}
	if initialized || inits == 0 {
		return true
	}
	next := mark + 1
	if mark >= 0 && !done {
		c := &m.containers[mark]
		m.start(c, false, "")
		if inst := m.here(c); inst != nil && inst.State == ContainerRunning {
			m.out.Waits = append(m.out.Waits,
				Wait{For: "init container", Object: c.spec.Name, Since: m.stepTime(inst.StartedAt)})
		}
		return false
	}
	if next == inits {
		return true
	}
	m.start(&m.containers[next], false, "")
	return false
}

// initMark is the last init container that has been begun in the sandbox in use, and how
// many there are: -1 before the first, their number when a regular one has been begun.
func (m *machine) initMark() (mark, inits int) {
	mark = -1
	for i := range m.containers {
		c := &m.containers[i]
		if c.class != initial && c.class != sidecar {
			break
		}
		inits++
		if m.here(c) != nil || m.inFlight(opStart, c.spec.Name) != nil || m.doneForGood(c) {
			mark = i
		}
	}
	if m.regularBegun() {
		mark = inits
	}
	return mark, inits
}

// passed reports whether a container after the init container c has been begun in the sandbox in use: c is done, even
// if the runtime no longer has it.
func (m *machine) passed(c *podContainer) bool {
	mark, inits := m.initMark()
	for i := range min(mark, inits) {
		if &m.containers[i] == c {
			return true
		}
	}
	return false
}

// doneForGood reports whether the init container c has succeeded in a pod that never restarts,
// and its instance has vanished since. Such a pod has one sandbox, and its containers may not
// leave a terminated state (L4.34).
func (m *machine) doneForGood(c *podContainer) bool {
	if c.class != initial || c.newest != nil || m.pod.Spec.RestartPolicy != corev1.RestartPolicyNever || m.resetting {
		return false
	}
	e, ended := m.lastExit(c)
	return ended && e.code == 0 && e.reason == reasonCompleted && !m.restarts(c, e)
}

// initDone reports whether the init container at the mark lets the next one start (L3.73).
func (m *machine) initDone(c *podContainer) bool {
	if m.inFlight(opStart, c.spec.Name) != nil || c.record.PostStart.ContainerID != "" {
		return false
	}
	if m.doneForGood(c) {
		return true
	}
	inst := m.here(c)
	if c.class == sidecar {
		return inst != nil && inst.State == ContainerRunning && m.started(c)
	}
	return inst != nil && inst.State == ContainerExited && succeeded(inst)
}

// failedInit names the init container that failed for good (L3.73e).
func (m *machine) failedInit() string {
	mark, inits := m.initMark()
	if mark < 0 || mark == inits {
		return ""
	}
	c := &m.containers[mark]
	inst := m.here(c)
	if c.class == sidecar || m.inFlight(opStart, c.spec.Name) != nil || inst == nil || inst.State != ContainerExited ||
		succeeded(inst) || m.due(c) {
		return ""
	}
	return c.spec.Name
}

// succeeded reports whether an init container that ended has succeeded.
func succeeded(inst *Container) bool {
	return inst.ExitCode == 0 && inst.Reason != reasonOOMKilled
}

// regularBegun reports whether a regular container exists in the sandbox in use (L3.72).
func (m *machine) regularBegun() bool {
	for i := range m.containers {
		if c := &m.containers[i]; c.class == regular && (m.here(c) != nil || m.inFlight(opStart, c.spec.Name) != nil) {
			return true
		}
	}
	return false
}
