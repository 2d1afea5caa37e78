package podlife

// initialize brings the init containers of the sandbox in use one step on and
// keeps the sidecars that have had their turn alive (L3.72–L3.74).
//
// The list is walked by one mark: the last init container that has been begun in
// this sandbox. What stands before it is done, except sidecars, which are
// restarted whenever they end; what stands after it is started when the one at
// the mark has ended well, or, if it is a sidecar, has started. failed names an
// init container that failed for good.
func (m *machine) initialize() (initialized bool, failed string) {
	inits := 0
	mark := -1
	for i := range m.slots {
		c := &m.slots[i]
		if c.class != initial && c.class != sidecar {
			break
		}
		inits++
		if m.here(c) != nil || m.inFlight(opStart, c.spec.Name) != nil {
			mark = i
		}
	}
	initialized = m.regularBegun()
	if initialized {
		mark = inits
	}
	done := false
	if mark >= 0 && mark < inits {
		var lost bool
		if done, lost = m.initDone(&m.slots[mark]); lost {
			return false, m.slots[mark].spec.Name
		}
	}
	for i := range inits {
		if c := &m.slots[i]; i < mark && c.class == sidecar {
			m.start(c, false, "sidecar ended")
		}
	}
	if initialized || inits == 0 {
		return true, ""
	}
	next := mark + 1
	if mark >= 0 && !done {
		c := &m.slots[mark]
		m.start(c, false, "")
		if inst := m.here(c); inst != nil && inst.State == ContainerRunning {
			m.out.Waits = append(m.out.Waits, Wait{For: "init container", Object: c.spec.Name, Since: m.own(inst.StartedAt)})
		}
		return false, ""
	}
	if next == inits {
		return true, ""
	}
	m.start(&m.slots[next], false, "")
	return false, ""
}

// initDone reports whether the init container at the mark lets the next one
// start; lost says that it failed for good (L3.73).
func (m *machine) initDone(c *slot) (done, lost bool) {
	if m.inFlight(opStart, c.spec.Name) != nil || c.mem.PostStart.ContainerID != "" {
		return false, false
	}
	inst := m.here(c)
	if c.class == sidecar {
		return inst != nil && inst.State == ContainerRunning && m.started(c), false
	}
	if inst == nil || inst.State != ContainerExited {
		return false, false
	}
	if inst.ExitCode == 0 && inst.Reason != reasonOOMKilled {
		return true, false
	}
	return false, !m.due(c)
}

// regularBegun reports whether a regular container exists in the sandbox in use (L3.72).
func (m *machine) regularBegun() bool {
	for i := range m.slots {
		if c := &m.slots[i]; c.class == regular && (m.here(c) != nil || m.inFlight(opStart, c.spec.Name) != nil) {
			return true
		}
	}
	return false
}
