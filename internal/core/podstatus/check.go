package podstatus

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

// Check returns what is wrong with the status of a pod. If no agent has acknowledged the pod, only
// the phase is checked.
func Check(pod *corev1.Pod) []Breach {
	r := &report{}
	st := &pod.Status
	switch st.Phase {
	case corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed:
	default:
		r.broken(Phase, "it is %q", st.Phase)
	}
	if st.StartTime == nil && len(st.ContainerStatuses)+len(st.InitContainerStatuses)+
		len(st.EphemeralContainerStatuses) == 0 &&
		Condition(st.Conditions, corev1.PodReady) == nil {
		return r.found
	}
	r.pod(pod)
	if st.Phase == corev1.PodFailed && strings.HasPrefix(st.Message, rejectedPrefix) {
		if len(st.ContainerStatuses)+len(st.InitContainerStatuses) > 0 ||
			Condition(st.Conditions, corev1.PodReady) != nil {
			r.broken(Rejected, "it has %d containers, Ready %v", len(st.ContainerStatuses),
				Condition(st.Conditions, corev1.PodReady))
		}
		return r.found
	}
	r.addresses(pod)
	all := containersOf(pod)
	r.entries(pod)
	for i := range all {
		if all[i].status != nil {
			r.container(&all[i])
		}
	}
	r.initOrder(all)
	r.conditions(pod, all)
	r.phase(pod, all)
	return r.found
}

// pod checks the parts of a status that concern the whole pod.
func (r *report) pod(pod *corev1.Pod) {
	st := &pod.Status
	if st.StartTime == nil || st.StartTime.IsZero() || st.QOSClass == "" || st.ObservedGeneration == 0 &&
		pod.Generation > 0 {
		r.broken(Acknowledged, "start time %v, QoS class %q, generation %d", st.StartTime, st.QOSClass,
			st.ObservedGeneration)
	}
	if st.ObservedGeneration > pod.Generation {
		r.broken(Generation, "%d, the pod has %d", st.ObservedGeneration, pod.Generation)
	}
	if q := resources.ComputeQoS(pod); st.QOSClass != "" && st.QOSClass != q {
		r.broken(QoS, "%s, not %s", st.QOSClass, q)
	}
}

func (r *report) addresses(pod *corev1.Pod) {
	st := &pod.Status
	var host, own []string
	for _, ip := range st.HostIPs {
		host = append(host, ip.IP)
	}
	for _, ip := range st.PodIPs {
		own = append(own, ip.IP)
	}
	pair := func(what, one string, all []string) {
		if len(all) == 0 && one != "" || len(all) > 0 && all[0] != one || len(all) > 2 || len(all) == 2 &&
			isIPv6(all[0]) == isIPv6(all[1]) {
			r.broken(Addresses, "%s %q of %v", what, one, all)
		}
	}
	pair("hostIP", st.HostIP, host)
	pair("podIP", st.PodIP, own)
	if st.HostIP == "" {
		r.broken(Acknowledged, "no hostIP")
	}
	if st.PodIP != "" {
		return
	}
	for _, list := range [...][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			if list[i].State.Running != nil {
				r.broken(Addresses, "%s runs, and the pod has no address", list[i].Name)
			}
		}
	}
}

func isIPv6(ip string) bool { return strings.Contains(ip, ":") }

// entries checks that the lists have each container once, in order.
func (r *report) entries(pod *corev1.Pod) {
	st, spec := &pod.Status, &pod.Spec
	var inits, others, debug []string
	for i := range spec.InitContainers {
		inits = append(inits, spec.InitContainers[i].Name)
	}
	for i := range spec.Containers {
		others = append(others, spec.Containers[i].Name)
	}
	for i := range spec.EphemeralContainers {
		debug = append(debug, spec.EphemeralContainers[i].Name)
	}
	slices.Sort(others)
	slices.Sort(debug)
	same := func(what string, list []corev1.ContainerStatus, want []string) {
		var have []string
		for i := range list {
			have = append(have, list[i].Name)
		}
		if !slices.Equal(have, want) {
			r.broken(Entries, "%s %v, the pod has %v", what, have, want)
		}
	}
	same("init containers", st.InitContainerStatuses, inits)
	same("containers", st.ContainerStatuses, others)
	if st.ObservedGeneration == pod.Generation { // ephemeral containers may have been added since
		same("ephemeral containers", st.EphemeralContainerStatuses, debug)
	}
}

// container checks one entry.
func (r *report) container(c *container) {
	s, name := c.status, c.spec.Name
	w, run, end := s.State.Waiting, s.State.Running, s.State.Terminated
	n := 0
	for _, has := range [...]bool{w != nil, run != nil, end != nil} {
		if has {
			n++
		}
	}
	if n != 1 {
		r.broken(OneState, "%s has %d", name, n)
	}
	if w != nil && !knownWait(w.Reason) {
		r.broken(WaitReason, "%s waits because of %q", name, w.Reason)
	}
	if run != nil && (s.ContainerID == "" || s.ImageID == "" || run.StartedAt.IsZero()) {
		r.broken(IDs, "%s runs: id %q, image %q, since %v", name, s.ContainerID, s.ImageID, run.StartedAt)
	}
	if s.ContainerID != "" && (s.ImageID == "" || s.Image == "" || !strings.Contains(s.ContainerID, "://")) {
		r.broken(IDs, "%s: id %q, image %q %q", name, s.ContainerID, s.Image, s.ImageID)
	}
	r.end(name, end)
	if end != nil && end.ContainerID != "" && end.ContainerID != s.ContainerID {
		r.broken(IDs, "%s: %q, its end is that of %q", name, s.ContainerID, end.ContainerID)
	}
	r.last(c)
	started := s.Started != nil && *s.Started
	if c.class == ephemeral {
		if s.Started != nil || s.Ready {
			r.broken(Started, "%s: started %v, ready %v", name, s.Started, s.Ready)
		}
		last := s.LastTerminationState.Terminated
		if (s.RestartCount != 0 || last != nil) && (last == nil || last.Reason != "ContainerStatusUnknown") {
			// a lost container increases the count (L4.27)
			r.broken(Ephemeral, "%s: %d restarts", name, s.RestartCount)
		}
	} else if s.Started == nil || started && run == nil {
		r.broken(Started, "%s: started %v, %+v", name, s.Started, s.State)
	}
	switch {
	case c.class == initial && s.Ready != (end != nil && end.ExitCode == 0),
		(c.class == regular || c.class == sidecar) && s.Ready && (run == nil || !started):
		r.broken(ReadyRuns, "%s: ready %v, started %v, %+v", name, s.Ready, started, s.State)
	}
	r.mounts(c)
}

func (r *report) end(name string, end *corev1.ContainerStateTerminated) {
	if end == nil {
		return
	}
	if end.Reason == "" {
		r.broken(EndReason, "%s ended with %d", name, end.ExitCode)
	}
	if !end.StartedAt.IsZero() && !end.FinishedAt.IsZero() && end.FinishedAt.Before(&end.StartedAt) {
		r.broken(EndTime, "%s: from %v to %v", name, end.StartedAt, end.FinishedAt)
	}
}

// last checks lastState.
func (r *report) last(c *container) {
	s, name := c.status, c.spec.Name
	last := s.LastTerminationState.Terminated
	if s.LastTerminationState.Waiting != nil || s.LastTerminationState.Running != nil {
		r.broken(LastEnd, "%s: %+v", name, s.LastTerminationState)
	}
	r.end(name, last)
	if last != nil && s.State.Waiting == nil {
		// A container that is lost when its pod terminates, or was never started again, does not
		// count as a restart (L4.27, L4.65).
		end := s.State.Terminated
		lost := last.Reason == "ContainerStatusUnknown" || end != nil && end.Reason == "ContainerStatusUnknown"
		if s.RestartCount == 0 && !lost || last.ContainerID != "" && last.ContainerID == s.ContainerID {
			r.broken(LastEnd, "%s: %d restarts, it is %q, the last one %q", name, s.RestartCount, s.ContainerID,
				last.ContainerID)
		}
	}
	if w := s.State.Waiting; w != nil && w.Reason == "CrashLoopBackOff" &&
		(last == nil || s.ContainerID != "" && last.ContainerID != "" && last.ContainerID != s.ContainerID) {
		r.broken(Backoff, "%s: it is %q, the last end %+v", name, s.ContainerID, last)
	}
}

// knownWait reports whether this is a known reason for which a container waits.
func knownWait(reason string) bool {
	switch reason {
	case "ContainerCreating", "PodInitializing", "CrashLoopBackOff",
		"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
		"RegistryUnavailable", "SignatureValidationFailed",
		"CreateContainerConfigError", "CreateContainerError", "PreCreateHookError", "PreStartHookError",
		"RunContainerError", "PostStartHookError",
		"ImageVolumeMountFailed":
		return true
	}
	return false
}

func (r *report) mounts(c *container) {
	same := slices.EqualFunc(c.spec.VolumeMounts, c.status.VolumeMounts,
		func(m corev1.VolumeMount, s corev1.VolumeMountStatus) bool {
			return m.Name == s.Name && m.MountPath == s.MountPath && m.ReadOnly == s.ReadOnly
		})
	if !same {
		r.broken(Mounts, "%s: %v", c.spec.Name, c.status.VolumeMounts)
	}
}

// initOrder checks that running containers were allowed to start.
func (r *report) initOrder(all []container) {
	for i := range all {
		c := &all[i]
		if c.class == ephemeral || c.status == nil || c.status.State.Running == nil {
			continue
		}
		for j := range all[:i] {
			b := &all[j]
			if b.status == nil || b.class != initial && b.class != sidecar {
				continue
			}
			s := b.status
			begun := s.State.Waiting == nil || s.LastTerminationState.Terminated != nil
			// it completed before
			lost := s.State.Terminated != nil && s.State.Terminated.Reason == "ContainerStatusUnknown"
			if b.class == initial && !s.Ready && !lost || b.class == sidecar && !begun {
				r.broken(InitOrder, "%s runs while %s is %+v", c.spec.Name, b.spec.Name, s.State)
			}
		}
	}
}

// conditions checks the conditions of the agent.
func (r *report) conditions(pod *corev1.Pod, all []container) {
	st := &pod.Status
	var have []string
	for i := range st.Conditions {
		c := &st.Conditions[i]
		if !agents(c.Type) {
			continue
		}
		have = append(have, string(c.Type))
		if c.Status != corev1.ConditionTrue && c.Status != corev1.ConditionFalse || c.LastTransitionTime.IsZero() ||
			c.ObservedGeneration > pod.Generation {
			r.broken(Conditions, "%+v", *c)
		}
		if c.Status == corev1.ConditionFalse && c.Reason == "" {
			r.broken(FalseReason, "%s", c.Type)
		}
	}
	if want := []string{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady",
		"PodScheduled"}; !slices.Equal(have, want) {
		r.broken(Conditions, "%v", have)
		return
	}
	if c := Condition(st.Conditions, corev1.PodInitialized); c.Status == corev1.ConditionFalse &&
		!r.uninitialized(all) {
		r.broken(Initialized, "it is False: %s", c.Message)
	}
	ready := !Terminal(st.Phase)
	for i := range all {
		if c := &all[i]; c.class == regular || c.class == sidecar {
			ready = ready && c.status != nil && c.status.Ready
		}
	}
	containers, whole := Condition(st.Conditions, corev1.ContainersReady), Condition(st.Conditions, corev1.PodReady)
	if (containers.Status == corev1.ConditionTrue) != ready || whole.Status == corev1.ConditionTrue && !ready {
		r.broken(Ready, "ContainersReady is %s, Ready %s", containers.Status, whole.Status)
	}
}

// agents reports whether every status of an agent has this condition.
func agents(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady,
		corev1.PodScheduled:
		return true
	}
	return false
}

func (r *report) uninitialized(all []container) bool {
	lacks := false
	for i := range all {
		c := &all[i]
		switch {
		case c.status == nil:
		case c.class == regular && c.status.State.Waiting == nil:
			return false
		case c.class == initial && !c.status.Ready, c.class == sidecar &&
			(c.status.Started == nil || !*c.status.Started):
			lacks = true
		}
	}
	return lacks
}

// phase checks the phase against the containers.
func (r *report) phase(pod *corev1.Pod, all []container) {
	st := &pod.Status
	runs, ran, waits := 0, 0, 0
	for i := range all {
		c := &all[i]
		if c.status == nil || c.class == ephemeral {
			continue
		}
		switch s := c.status; {
		case s.State.Running != nil:
			runs++
			if Terminal(st.Phase) {
				r.broken(TerminalEnd, "%s runs while the pod is %s", c.spec.Name, st.Phase)
			}
		case s.State.Terminated != nil || s.LastTerminationState.Terminated != nil:
			ran++
		default:
			waits++
		}
		if end := c.status.State.Terminated; st.Phase == corev1.PodSucceeded && c.class == regular &&
			(end == nil || end.ExitCode != 0) {
			r.broken(Succeeded, "%s: %+v", c.spec.Name, c.status.State)
		}
	}
	if Terminal(st.Phase) && (Condition(st.Conditions, corev1.PodResizePending) != nil ||
		Condition(st.Conditions, corev1.PodResizeInProgress) != nil) {
		r.broken(TerminalEnd, "a resize while %s", st.Phase)
	}
	if st.Phase == corev1.PodRunning && runs+ran == 0 || st.Phase == corev1.PodPending && ran+waits == 0 &&
		started(all) {
		r.broken(RunningPhase, "%s: %d run, %d ran, %d wait", st.Phase, runs, ran, waits)
	}
}

// started reports whether all sidecars have started.
func started(all []container) bool {
	for i := range all {
		if s := all[i].status; all[i].class == sidecar && (s == nil || s.Started == nil || !*s.Started) {
			return false
		}
	}
	return true
}
