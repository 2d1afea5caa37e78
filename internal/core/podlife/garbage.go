package podlife

import "slices"

// collectGarbage removes dead containers that are no longer needed: all but the newest dead
// instance of each container, and containers that never started and have a newer instance (L7.130);
// and old sandboxes that are empty (L7.131).
func (m *machine) collectGarbage() {
	if m.s.Life == Terminated &&
		(m.pod.DeletionTimestamp != nil || m.in.Gone || m.s.End.Evicted || m.in.Node.DiskShort) {
		return // cleanUp removes everything
	}
	all := m.in.Observed.Containers
	for i := range all {
		o := &all[i]
		if mayHaveProcess(o) {
			continue
		}
		if c := m.container(o.Name); c != nil && c.newest == o {
			continue
		}
		newer := false
		for j := i + 1; j < len(all) && !newer; j++ {
			newer = all[j].Name == o.Name && (all[j].State == ContainerExited || o.State == ContainerCreated)
		}
		if newer {
			m.remove(o, true, "a newer instance has ended")
		}
	}
	sandboxes := m.in.Observed.Sandboxes
	for i := 1; i < len(sandboxes); i++ {
		s := &sandboxes[i]
		if s.Ready || !slices.Contains(m.s.Stopped, s.ID) ||
			slices.ContainsFunc(all, func(c Container) bool { return c.SandboxID == s.ID }) {
			continue
		}
		m.try(RemoveSandbox{SandboxID: s.ID}, "the sandbox was replaced", "sandbox", s.ID)
	}
}
