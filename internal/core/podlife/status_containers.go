package podlife

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// setContainers fills the three lists of container statuses (L4.25).
func (m *machine) setContainers(st *corev1.PodStatus) {
	spec := &m.pod.Spec
	if n := len(spec.InitContainers); n > 0 {
		st.InitContainerStatuses = make([]corev1.ContainerStatus, 0, n)
	}
	if n := len(spec.Containers); n > 0 {
		st.ContainerStatuses = make([]corev1.ContainerStatus, 0, n)
	}
	begun := m.regularBegunAnywhere()
	for i := range m.containers {
		c := &m.containers[i]
		s := m.containerStatus(c, begun)
		switch c.class {
		case initial, sidecar:
			st.InitContainerStatuses = append(st.InitContainerStatuses, s)
		case ephemeral:
			st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, s)
		default:
			st.ContainerStatuses = append(st.ContainerStatuses, s)
		}
	}
	byName := func(a, b corev1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(st.ContainerStatuses, byName)
	slices.SortFunc(st.EphemeralContainerStatuses, byName)
	m.statuses(st, func(c *podContainer, s *corev1.ContainerStatus) { c.entry = s })
	m.defaultLostStatuses(st)
	m.cutMessages(st)
}

// containerStatus computes one entry: the default, what is inherited, what the runtime reports,
// and what the container waits for (L4.25–L4.35).
func (m *machine) containerStatus(c *podContainer, regularBegun bool) corev1.ContainerStatus {
	old := c.old
	s := corev1.ContainerStatus{Name: c.spec.Name, Image: c.spec.Image}
	if old != nil {
		if old.State.Terminated != nil {
			s = *old
		} else {
			s.RestartCount, s.LastTerminationState = old.RestartCount, old.LastTerminationState
		}
	}
	switch {
	case old != nil && m.starting(c):
		s = *old // the new instance is not shown before it runs or its start has failed
	case c.newest != nil:
		m.observedStatus(c, &s, regularBegun)
	case m.resetting && c.class != ephemeral && old != nil && old.ContainerID != "" &&
		(old.State.Terminated == nil || !m.resetRuns()):
		m.resetStatus(&s, old)
		c.record.Lost = false // the reset removed it
	default:
		m.lostStatus(c, &s, regularBegun)
	}
	m.waitingStatus(c, &s)
	m.deviceStatus(c, &s)
	s.VolumeMounts = m.volumeMounts(c, old)
	if c.class == ephemeral {
		return s // not relevant for readiness
	}
	started := m.started(c)
	if c.class == initial {
		s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 // L4.43
	} else {
		s.Ready = m.ready(c)
	}
	if old != nil && old.Started != nil && *old.Started == started {
		s.Started = old.Started
	} else {
		s.Started = new(started)
	}
	return s
}

// deviceStatus fills the health of a container's devices. After they are released, the last one
// stays.
func (m *machine) deviceStatus(c *podContainer, s *corev1.ContainerStatus) {
	if c.class != regular {
		return
	}
	if now := m.in.Observed.Devices.Status[c.spec.Name]; now != nil {
		s.AllocatedResourcesStatus = now
	} else if c.old != nil {
		s.AllocatedResourcesStatus = c.old.AllocatedResourcesStatus
	}
}

// starting reports whether the newest instance of c was created by a start that has not ended:
// upstream never shows this state, and no client expects it.
func (m *machine) starting(c *podContainer) bool {
	if c.newest == nil || c.newest.State != ContainerCreated {
		return false
	}
	f := m.inFlight(opStart, c.spec.Name)
	return f != nil && int(f.Attempt) == c.newest.Attempt
}

// defaultWaiting is the state of a container without any known state (L4.25, L12.12).
func (m *machine) defaultWaiting(old *corev1.ContainerStatus) *corev1.ContainerStateWaiting {
	reason := "ContainerCreating"
	if len(m.pod.Spec.InitContainers) > 0 {
		reason = "PodInitializing"
	}
	if old != nil {
		if w := old.State.Waiting; w != nil && w.Reason == reason && w.Message == "" {
			return w
		}
	}
	return &corev1.ContainerStateWaiting{Reason: reason}
}

// lostStatus is the entry of a container that the runtime does not have.
func (m *machine) lostStatus(c *podContainer, s *corev1.ContainerStatus, regularBegun bool) {
	old := c.old
	if s.State.Terminated == nil {
		s.State.Waiting = m.defaultWaiting(old)
	}
	switch {
	case c.class == initial && regularBegun && (old == nil || old.State.Running != nil ||
		old.State.Waiting != nil && old.LastTerminationState.Terminated == nil):
		// the runtime has removed it after it was done (L4.33)
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason:  reasonCompleted,
			Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
		}}
	case old == nil:
	case old.State.Running != nil:
		if s.LastTerminationState.Terminated != nil {
			return // an observed exit is more precise (L4.27)
		}
		s.LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason: reasonStatusUnknown, ExitCode: unknownExitCode,
			Message: "The container could not be located when the pod was deleted.  The container used to be Running",
		}}
		if m.pod.DeletionTimestamp == nil {
			s.RestartCount = old.RestartCount + 1
		}
	}
}

// assumed reports whether t is the end of an init container that the runtime no longer had: it belongs to an instance
// whose ID is unknown.
func assumed(t *corev1.ContainerStateTerminated) bool {
	return t != nil && t.ContainerID == "" && t.Reason == reasonCompleted
}

// observedStatus is the entry of a container that the runtime has (L4.28–L4.32).
func (m *machine) observedStatus(c *podContainer, s *corev1.ContainerStatus, regularBegun bool) {
	o, old := c.newest, c.old
	id := m.in.Node.RuntimeName + "://" + o.ID
	s.ContainerID, s.ImageID = id, o.ImageRef
	s.Image = o.Image
	if s.Image == "" {
		s.Image = c.spec.Image
	}
	s.RestartCount = max(int32(o.Attempt), s.RestartCount)
	s.State = corev1.ContainerState{}
	switch o.State {
	case ContainerRunning:
		if old != nil && old.State.Terminated != nil && old.ContainerID != id && old.RestartCount >= int32(o.Attempt) {
			s.RestartCount = old.RestartCount + 1
		}
		if old != nil && old.State.Running != nil && old.ContainerID == id {
			s.State.Running = old.State.Running
		} else {
			s.State.Running = &corev1.ContainerStateRunning{StartedAt: second(o.StartedAt)}
		}
	case ContainerExited:
		s.State.Terminated = m.terminated(o, id, old)
		if t := s.LastTerminationState.Terminated; t != nil && t.ContainerID == id {
			s.LastTerminationState = corev1.ContainerState{} // shown there while the container waited
		}
	case ContainerUnknown:
		ran := old != nil && old.State.Running != nil
		// Without an earlier status, as of a static pod after a restart of the agent, containers that run after a
		// sidecar show that it ran, too (L3.73).
		if ran || old == nil && c.class == sidecar && regularBegun {
			s.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: unknownExitCode,
				Reason:  reasonStatusUnknown,
				Message: "The container could not be located when the pod was terminated", ContainerID: id}
			if ran {
				s.RestartCount = old.RestartCount + 1
			}
			break
		}
		if old != nil && old.State.Terminated != nil && old.ContainerID == id {
			s.State = old.State // the published state, after it was lost
			break
		}
		s.State.Waiting = m.defaultWaiting(old)
	default:
		s.State.Waiting = m.defaultWaiting(old)
	}
	if old != nil && old.State.Terminated != nil && old.ContainerID != id &&
		(old.ContainerID != "" || assumed(old.State.Terminated) && o.Attempt > int(old.RestartCount)) {
		s.LastTerminationState = corev1.ContainerState{Terminated: old.State.Terminated}
	}
	if p := c.previous; p != nil && p.State == ContainerExited {
		s.LastTerminationState = corev1.ContainerState{
			Terminated: m.terminated(p, m.in.Node.RuntimeName+"://"+p.ID, old)}
	}
	m.setContainerResources(c, s)
	s.User = o.User
}

// terminated converts an instance that ended to the API's form.
func (m *machine) terminated(o *Container, id string, old *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if old != nil { // an end does not change: share it, unless it was assumed of an unknown instance
		for _, state := range [...]*corev1.ContainerState{&old.State, &old.LastTerminationState} {
			if t := state.Terminated; t != nil && t.ContainerID == id && t.Reason != reasonStatusUnknown {
				return t
			}
		}
	}
	return &corev1.ContainerStateTerminated{
		ExitCode: o.ExitCode, Reason: o.Reason, Message: o.Message,
		StartedAt: second(o.StartedAt), FinishedAt: second(o.FinishedAt), ContainerID: id,
	}
}

// waitingStatus shows why a container that is due does not run (L4.35, L3.96).
func (m *machine) waitingStatus(c *podContainer, s *corev1.ContainerStatus) {
	if m.s.Life != Syncing || s.State.Running != nil {
		return
	}
	w := c.record.Waiting
	if t := s.State.Terminated; t != nil {
		e, ended := m.lastExit(c)
		if !ended || c.class == ephemeral || !m.restarts(c, e) {
			return
		}
		if c.class == initial && e.code == 0 && e.reason != reasonOOMKilled &&
			(c.newest != nil || w.Reason == "" || m.passed(c)) {
			return // it is done (L4.33), unless it has to start over in a new sandbox (L3.62) and cannot
		}
		if w.Reason == "" {
			if policyOnly := m.restarts(c, exit{code: e.code, reason: e.reason}); policyOnly {
				return // the end itself stays visible until the next start
			}
			// The API does not allow a container to leave a final terminated state, so it must not
			// be shown.
			w.Reason = "ContainerCreating"
		}
		s.LastTerminationState = corev1.ContainerState{Terminated: t}
		s.State.Terminated = nil
	} else if w.Reason == "" {
		return
	}
	if old := c.old; old != nil && old.State.Waiting != nil &&
		old.State.Waiting.Reason == w.Reason && old.State.Waiting.Message == w.Message {
		s.State.Waiting = old.State.Waiting
		return
	}
	s.State.Waiting = &corev1.ContainerStateWaiting{Reason: w.Reason, Message: w.Message}
}

// volumeMounts lists the mounts of a container; reported mounts stay (L4.32).
func (m *machine) volumeMounts(c *podContainer, old *corev1.ContainerStatus) []corev1.VolumeMountStatus {
	if len(c.spec.VolumeMounts) == 0 || old != nil && len(old.VolumeMounts) == len(c.spec.VolumeMounts) {
		if old != nil {
			return old.VolumeMounts
		}
		return nil
	}
	list := make([]corev1.VolumeMountStatus, 0, len(c.spec.VolumeMounts))
	for i := range c.spec.VolumeMounts {
		v := &c.spec.VolumeMounts[i]
		s := corev1.VolumeMountStatus{Name: v.Name, MountPath: v.MountPath, ReadOnly: v.ReadOnly}
		if v.ReadOnly {
			mode := corev1.RecursiveReadOnlyDisabled
			if r := v.RecursiveReadOnly; r != nil &&
				(*r == corev1.RecursiveReadOnlyEnabled || *r == corev1.RecursiveReadOnlyIfPossible &&
					m.in.Node.RecursiveReadOnly) {
				mode = corev1.RecursiveReadOnlyEnabled
			}
			s.RecursiveReadOnly = &mode
		}
		list = append(list, s)
	}
	return list
}

// defaultLostStatuses gives every container of an ended pod a terminated state: a container without
// one is lost (L4.65).
func (m *machine) defaultLostStatuses(st *corev1.PodStatus) {
	if m.s.Life != Terminated && m.s.Life != Finished {
		return
	}
	lose := func(s *corev1.ContainerStatus) {
		if s.State.Terminated == nil {
			s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: unknownExitCode,
				Reason:  reasonStatusUnknown,
				Message: "The container could not be located when the pod was terminated"}}
		}
	}
	if m.podInitialized(st) {
		for i := range st.ContainerStatuses {
			lose(&st.ContainerStatuses[i])
		}
	}
	last := 0
	for i := range st.InitContainerStatuses {
		if s := &st.InitContainerStatuses[i]; s.State.Terminated != nil || s.State.Running != nil ||
			s.LastTerminationState.Terminated != nil {
			last = i
		}
	}
	for i := range st.InitContainerStatuses {
		if i <= last {
			lose(&st.InitContainerStatuses[i])
		}
	}
}

// podInitialized reports whether a pod got as far as its regular containers (L4.65).
func (m *machine) podInitialized(st *corev1.PodStatus) bool {
	n := len(st.InitContainerStatuses)
	if n == 0 {
		return true
	}
	for i := range st.ContainerStatuses {
		if s := &st.ContainerStatuses[i]; s.State.Waiting == nil || s.LastTerminationState.Terminated != nil {
			return true
		}
	}
	last := &st.InitContainerStatuses[n-1]
	return last.Started != nil && *last.Started || last.State.Terminated != nil && last.State.Terminated.ExitCode == 0
}

// maxMessages is the maximum total size of the termination messages of a pod (L3.152).
const maxMessages = 12288

// cutMessages shares that size among the containers. No character is cut in two.
func (m *machine) cutMessages(st *corev1.PodStatus) {
	if len(m.containers) == 0 {
		return
	}
	limit := maxMessages / len(m.containers)
	for _, list := range [...][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses,
		st.EphemeralContainerStatuses} {
		for i := range list {
			for _, s := range [...]*corev1.ContainerState{&list[i].State, &list[i].LastTerminationState} {
				if t := s.Terminated; t != nil && len(t.Message) > limit {
					cut := *t
					cut.Message = strings.ToValidUTF8(t.Message[:limit], "")
					s.Terminated = &cut
				}
			}
		}
	}
}

// regularBegunAnywhere reports whether a regular container exists in any sandbox.
func (m *machine) regularBegunAnywhere() bool {
	for i := range m.containers {
		if m.containers[i].class == regular && m.containers[i].newest != nil {
			return true
		}
	}
	return false
}
