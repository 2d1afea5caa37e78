package podstatus

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// CheckChange returns what is wrong with a status that follows another one of the same pod;
// statuses in between may have been missed.
func CheckChange(before, after *corev1.Pod) []Breach {
	r := &report{}
	old, st := &before.Status, &after.Status
	if Terminal(old.Phase) && st.Phase != old.Phase {
		r.broken(PhaseLatched, "%s after %s", st.Phase, old.Phase)
	}
	if old.QOSClass != "" && st.QOSClass != old.QOSClass {
		r.broken(Fixed, "QoS class %s after %s", st.QOSClass, old.QOSClass)
	}
	if old.StartTime == nil {
		return r.found
	}
	if st.StartTime == nil || !st.StartTime.Equal(old.StartTime) {
		r.broken(Fixed, "start time %v after %v", st.StartTime, old.StartTime)
	}
	if st.ObservedGeneration < old.ObservedGeneration {
		r.broken(GenerationRises, "%d after %d", st.ObservedGeneration, old.ObservedGeneration)
	}
	if strings.HasPrefix(st.Message, rejectedPrefix) {
		return r.found // the rest of it is replaced (L3.12)
	}
	if old.HostIP != "" && st.HostIP == "" || len(old.PodIPs) > 0 && len(st.PodIPs) == 0 {
		r.broken(AddressesKept, "%s %v after %s %v", st.HostIP, st.PodIPs, old.HostIP, old.PodIPs)
	}
	r.transitions(old, st)
	earlier := containersOf(before)
	now := containersOf(after)
	for i := range now {
		for j := range earlier {
			if a, b := &earlier[j], &now[i]; a.spec.Name == b.spec.Name && a.status != nil && b.status != nil {
				r.instance(after, a, b)
			}
		}
	}
	return r.found
}

func (r *report) transitions(old, st *corev1.PodStatus) {
	for i := range st.Conditions {
		c := &st.Conditions[i]
		o := Condition(old.Conditions, c.Type)
		if o == nil || !agents(c.Type) {
			continue
		}
		moved := !o.LastTransitionTime.Equal(&c.LastTransitionTime)
		if moved && o.Status == c.Status {
			r.broken(TransitionTime, "%s=%s, from %v to %v", c.Type, c.Status, o.LastTransitionTime,
				c.LastTransitionTime)
		}
		if c.Type == corev1.PodInitialized && o.Status == corev1.ConditionTrue && c.Status != corev1.ConditionTrue {
			r.broken(InitializedOnce, "it is %s again", c.Status)
		}
	}
}

// instance compares two statuses of one container.
func (r *report) instance(pod *corev1.Pod, before, after *container) {
	a, b, name := before.status, after.status, after.spec.Name
	begun := a.State.Running != nil || a.State.Terminated != nil
	if b.RestartCount < a.RestartCount || b.State.Running != nil && begun && a.ContainerID != "" &&
		b.ContainerID != a.ContainerID && b.RestartCount <= a.RestartCount {
		r.broken(CountsRise, "%s: %d after %d, %q after %q", name, b.RestartCount, a.RestartCount, b.ContainerID,
			a.ContainerID)
	}
	if run, was := b.State.Running, a.State.Running; run != nil && was != nil && a.ContainerID == b.ContainerID &&
		!run.StartedAt.Equal(&was.StartedAt) {
		r.broken(OneLife, "%s runs since %v, before since %v", name, run.StartedAt, was.StartedAt)
	}
	if a.State.Running != nil && b.State.Running != nil && a.ContainerID == b.ContainerID &&
		after.spec.StartupProbe == nil && a.Started != nil && *a.Started && (b.Started == nil || !*b.Started) {
		r.broken(StartedStays, "%s, that is %q", name, b.ContainerID)
	}
	if end := a.State.Terminated; end != nil {
		if b.State.Running != nil && end.ContainerID != "" && end.ContainerID == b.ContainerID {
			r.broken(OneLife, "%s, that is %q, runs after its end", name, b.ContainerID)
		}
		// The end of an instance that was unknown was assumed: the observed one is more precise (L4.27).
		if next := b.State.Terminated; next != nil && end.ContainerID != "" && next.ContainerID == end.ContainerID &&
			next.ExitCode != end.ExitCode && end.Reason != "ContainerStatusUnknown" {
			r.broken(OneLife, "%s, that is %q, ended with %d, before with %d", name, b.ContainerID, next.ExitCode,
				end.ExitCode)
		}
		if b.State.Terminated == nil && final(pod, after, end) {
			r.broken(FinalEnd, "%s ended with %d, and is %+v", name, end.ExitCode, b.State)
		}
	}
	if b.State.Waiting != nil && begun && b.LastTerminationState.Terminated == nil {
		r.broken(EndShown, "%s waits because of %s after %+v", name, b.State.Waiting.Reason, a.State)
	}
}

// final reports whether a container must not leave its terminated state, according to the API.
func final(pod *corev1.Pod, c *container, end *corev1.ContainerStateTerminated) bool {
	if c.class == ephemeral {
		return true
	}
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if len(list[i].RestartPolicyRules) > 0 {
				return false
			}
		}
	}
	if c.class == sidecar || c.spec.RestartPolicy != nil {
		return false
	}
	if c.class == initial { // init starts over in a new sandbox (L3.62)
		return pod.Spec.RestartPolicy == corev1.RestartPolicyNever
	}
	switch pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return true
	case corev1.RestartPolicyOnFailure:
		return end.ExitCode == 0
	case corev1.RestartPolicyAlways:
	}
	return false
}
