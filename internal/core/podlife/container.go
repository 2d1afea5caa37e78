package podlife

import (
	"hash/fnv"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// DefinitionHash is the hash that shows whether a running container still matches the spec: of
// name and image only (L3.66). The node agent writes it into the container's annotations and
// returns it as Container.Hash.
func DefinitionHash(name, image string) string {
	var room [256]byte
	b := strconv.AppendQuote(room[:0], name)
	b = strconv.AppendQuote(append(b, ' '), image)
	h := fnv.New32a()
	h.Write(b)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

// class is the role of a container in its pod.
type class int

const (
	initial   class = iota // init container that runs to its end
	sidecar                // init container with restartPolicy Always
	regular                // spec.containers
	ephemeral              // spec.ephemeralContainers
	volume                 // no container: an image volume, which only has an image (L3.115)
)

// podContainer is one container of the spec with its state.
type podContainer struct {
	spec     *corev1.Container
	class    class
	record   *containerRecord
	newest   *Container              // newest instance, whatever its sandbox
	previous *Container              // the one before
	old      *corev1.ContainerStatus // its entry in the status published before
	entry    *corev1.ContainerStatus // and in the one that this Step publishes; old until that is made
}

// exit describes the end of the last instance of a container.
type exit struct {
	id       string
	code     int32
	reason   string
	finished time.Time
}

// fieldPath is the involvedObject.fieldPath of the container's events (L3.95).
func (c *podContainer) fieldPath() string {
	switch c.class {
	case initial, sidecar:
		return "spec.initContainers{" + c.spec.Name + "}"
	case ephemeral:
		return "spec.ephemeralContainers{" + c.spec.Name + "}"
	case volume:
		return ""
	default:
		return "spec.containers{" + c.spec.Name + "}"
	}
}

func (c *podContainer) running() bool { return c.newest != nil && c.newest.State == ContainerRunning }

// index finds the instances and the record of every container of the spec.
func (m *machine) index() {
	spec := &m.pod.Spec
	m.containers = make([]podContainer, 0, len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers))
	for i := range spec.InitContainers {
		k := initial
		if p := spec.InitContainers[i].RestartPolicy; p != nil && *p == corev1.ContainerRestartPolicyAlways {
			k = sidecar
		}
		m.containers = append(m.containers, podContainer{spec: &spec.InitContainers[i], class: k})
	}
	for i := range spec.Containers {
		m.containers = append(m.containers, podContainer{spec: &spec.Containers[i], class: regular})
	}
	for i := range spec.EphemeralContainers {
		c := (*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon)
		m.containers = append(m.containers, podContainer{spec: c, class: ephemeral})
	}
	m.volumes = imageVolumes(spec)
	m.findRecords()
	m.statuses(&m.s.Last, func(c *podContainer, s *corev1.ContainerStatus) {
		if c.old == nil {
			c.old, c.entry = s, s
		}
	})
	for i := range m.in.Observed.Containers {
		o := &m.in.Observed.Containers[i]
		c := m.container(o.Name)
		if c == nil || c.class == volume {
			continue
		}
		c.previous, c.newest = c.newest, o
		if o.Attempt >= c.record.Attempts {
			// The image that was pulled was for this instance, even if its start was reported as failed.
			c.record.Attempts, c.record.Pulled = o.Attempt+1, ""
		}
	}
	for i := range m.containers {
		c := &m.containers[i]
		if m.superseded(c) {
			c.newest, c.previous = nil, nil
		}
		c.record.Lost = c.record.Lost && c.newest == nil
		if c.newest == nil {
			m.countLost(c)
		}
	}
	for _, l := range m.in.Observed.Logs {
		if c := m.container(l.Container); c != nil && c.class != volume && c.newest == nil {
			c.record.Attempts = max(c.record.Attempts, l.Attempt+1) // L3.88
		}
	}
}

// findRecords finds the record of every container and image volume.
func (m *machine) findRecords() {
	for pass := range 2 { // the first makes the missing ones, after which they do not move
		at := 0
		for _, list := range [...][]podContainer{m.containers, m.volumes} {
			for i := range list {
				at = m.s.recordAt(list[i].spec.Name, at)
				if pass == 1 {
					list[i].record = &m.s.Containers[at]
				}
				at++
			}
		}
	}
}

// countLost counts the instances of a container of which the runtime has none, as far as the published status shows
// them.
func (m *machine) countLost(c *podContainer) {
	old := c.old
	if old == nil {
		return
	}
	c.record.Lost = c.record.Lost || old.State.Running != nil
	used := 0
	end := old.LastTerminationState.Terminated
	if old.ContainerID != "" || assumed(old.State.Terminated) || assumed(end) ||
		end != nil && end.ContainerID != "" && end.Reason != reasonRestartingAll {
		used = 1 // the count of the instance that is lost
	}
	c.record.Attempts = max(c.record.Attempts, int(old.RestartCount)+used)
}

// superseded reports whether the only instances left of c are older than the published one, which is gone, and must not
// be shown in its place: in a pod that has ended, because its sandbox was removed before theirs (L4.18, L4.27); in any
// pod, if the newest of them was created and never started.
func (m *machine) superseded(c *podContainer) bool {
	if c.old == nil || c.newest == nil || c.newest.Attempt >= int(c.old.RestartCount) {
		return false
	}
	return c.newest.State == ContainerCreated ||
		m.s.Life == Terminated && c.newest.State == ContainerExited && c.old.State.Terminated != nil
}

// here returns the newest instance of c if it belongs to the sandbox in use.
func (m *machine) here(c *podContainer) *Container {
	if c.newest != nil && m.sandbox != nil && c.newest.SandboxID == m.sandbox.ID {
		return c.newest
	}
	return nil
}

// lastExit returns how the last instance of c ended; false when it has not ended or there has
// never been one. An instance that vanished counts as killed (L7.73).
func (m *machine) lastExit(c *podContainer) (exit, bool) {
	if c.newest != nil {
		if c.newest.State != ContainerExited {
			return exit{}, false
		}
		return exit{c.newest.ID, c.newest.ExitCode, c.newest.Reason, c.newest.FinishedAt}, true
	}
	old := c.old
	if old == nil {
		return exit{}, false
	}
	t := old.State.Terminated
	switch {
	case old.State.Running != nil:
		return exit{id: old.ContainerID, code: unknownExitCode, reason: reasonStatusUnknown}, true
	case t == nil && old.State.Waiting != nil:
		t = old.LastTerminationState.Terminated
		if c.record.Lost { // t is the end of the previous instance
			return exit{code: unknownExitCode, reason: reasonStatusUnknown}, true
		}
	}
	if t == nil {
		return exit{}, false
	}
	return exit{t.ContainerID, t.ExitCode, t.Reason, t.FinishedAt.Time}, true
}
