package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podstatus"
)

// mostEvents limits the number of warnings that are added.
const mostEvents = 5

// Beside is what belongs to a pod beside its own object.
type Beside struct {
	Events []corev1.Event // about it
	// Claims explain its claims that are not bound, by name; no lines: the claim does not exist.
	Claims map[string]Lines
	// ResourceClaims are the names of its ResourceClaims and of their templates that do not exist, each with its kind.
	ResourceClaims []string
	// Handler is the pod's RuntimeClass handler if no container runtime of its node serves it now; empty otherwise.
	Handler string
	Room    Room // of the cluster, if NeedsRoom
	Log     *Log // of FailedLog; nil if there is none, or if it could not be read
}

// Pod explains a pod.
func Pod(p *corev1.Pod, b Beside, now time.Time) (out Lines) {
	switch {
	case p.DeletionTimestamp != nil:
		out.deletion(p, now)
	case p.Status.Phase == corev1.PodSucceeded:
		out.info("has ended: all containers exited with 0")
	case p.Status.Phase == corev1.PodFailed:
		out.warn("has failed%s", after(": ", because(p.Status.Reason, p.Status.Message)))
		out.containers(p, now)
	case !out.scheduled(p, &b):
	default:
		out.deadline(p, now)
		out.containers(p, now)
		out.gates(p)
		if !out.Problems() {
			out.running(p, now)
		}
	}
	out.claims(b.Claims)
	if ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed; b.Handler != "" && !ended {
		out.warn("its container runtime, that of handler %s, cannot be used on node %s now: no container is "+
			"started or stopped", b.Handler, p.Spec.NodeName)
	}
	if out.Problems() {
		out.events(b.Events, now)
	}
	out.log(b.Log, p.Name)
	return out
}

// claims adds what the pod's claims wait for.
func (l *Lines) claims(all map[string]Lines) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name] == nil {
			l.warn("claim %s does not exist", name)
		}
		for _, line := range all[name] {
			if line.Problem {
				l.warn("claim %s: %s", name, line.Text)
			}
		}
	}
}

func (l *Lines) deletion(p *corev1.Pod, now time.Time) {
	if at := p.DeletionTimestamp.Time; at.After(now) {
		l.warn("is being deleted: its grace period ends in %s", ago(at, now))
	} else {
		l.warn("is being deleted: its grace period ended %s ago", ago(now, at))
	}
	if len(p.Finalizers) > 0 {
		l.warn("stays until its finalizers are removed: %s", strings.Join(p.Finalizers, ", "))
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Running != nil {
			l.warn("container %s still runs", s.Name)
		}
	}
}

// deadline adds that a pod is ended because its active deadline has passed; its status shows this only afterwards.
func (l *Lines) deadline(p *corev1.Pod, now time.Time) {
	if p.Spec.ActiveDeadlineSeconds == nil || p.Status.StartTime == nil {
		return
	}
	end := p.Status.StartTime.Add(time.Duration(*p.Spec.ActiveDeadlineSeconds) * time.Second)
	if now.After(end) {
		l.warn("its activeDeadlineSeconds ended %s ago: its containers are being stopped", ago(now, end))
	}
}

// scheduled reports whether the pod has a node, and explains why it has none.
func (l *Lines) scheduled(p *corev1.Pod, b *Beside) bool {
	if p.Spec.NodeName != "" {
		return true
	}
	if gates := p.Spec.SchedulingGates; len(gates) > 0 {
		var names []string
		for _, g := range gates {
			names = append(names, g.Name)
		}
		l.warn("is not scheduled until its scheduling gates are removed: %s", strings.Join(names, ", "))
		return false
	}
	if c := podstatus.Condition(p.Status.Conditions, corev1.PodScheduled); c != nil &&
		c.Status == corev1.ConditionFalse {
		l.warn("is not scheduled: %s%s", because(c.Reason, brief(c.Message)), unfit(p, c.Message, b.Room))
		return false
	}
	for _, m := range b.ResourceClaims {
		l.warn("is not scheduled: %s does not exist", m)
	}
	if len(b.ResourceClaims) > 0 {
		return false
	}
	if s := p.Spec.SchedulerName; s != "" && s != corev1.DefaultSchedulerName {
		l.warn("is not scheduled: the scheduler %q has not chosen a node", s)
		return false
	}
	l.warn("is not scheduled: the scheduler has not processed it yet")
	return false
}

// containers explains what each container waits for.
func (l *Lines) containers(p *corev1.Pod, now time.Time) {
	if len(p.Status.ContainerStatuses) == 0 && p.Status.Phase != corev1.PodFailed {
		l.warn("waits for node %s: its agent has not reported anything about it", p.Spec.NodeName)
		return
	}
	sidecar := map[string]bool{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		sidecar[c.Name] = c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	for i := range p.Status.InitContainerStatuses {
		s := &p.Status.InitContainerStatuses[i]
		done := s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 && !sidecar[s.Name]
		if done || sidecar[s.Name] && s.Started != nil && *s.Started {
			continue
		}
		l.container("init container", s, specOf(p.Spec.InitContainers, s.Name), now)
		if s.State.Running != nil {
			l.warn("init container %s has run for %s; what follows waits for it", s.Name,
				ago(now, s.State.Running.StartedAt.Time))
		}
		return // the following containers wait for it
	}
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		l.container("container", s, specOf(p.Spec.Containers, s.Name), now)
		if s.State.Running == nil || s.Ready || p.Status.Phase == corev1.PodFailed {
			continue
		}
		if s.Started == nil || !*s.Started {
			l.warn("container %s has run for %s, and its %s", s.Name, ago(now, s.State.Running.StartedAt.Time),
				notStarted(specOf(p.Spec.Containers, s.Name)))
		} else {
			l.warn("container %s runs, and is not ready: its readiness probe does not succeed", s.Name)
		}
	}
}

// specOf returns the container with a name; an empty one if there is none.
func specOf(all []corev1.Container, name string) *corev1.Container {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return &corev1.Container{}
}

// notStarted is what a running container waits for before its readiness counts.
func notStarted(c *corev1.Container) string {
	const probe, hook = "startup probe has not succeeded yet", "postStart hook has not ended yet"
	switch hooked := c.Lifecycle != nil && c.Lifecycle.PostStart != nil; {
	case hooked && c.StartupProbe != nil:
		return hook + ", or its " + probe
	case hooked:
		return hook
	}
	return probe
}

func (l *Lines) container(what string, s *corev1.ContainerStatus, spec *corev1.Container, now time.Time) {
	switch st := s.State; {
	case st.Waiting != nil:
		text, ok := pullProblem(spec, st.Waiting.Reason, st.Waiting.Message)
		if !ok {
			text = because(st.Waiting.Reason, brief(st.Waiting.Message))
		}
		if text == "" {
			text = "its status gives no reason yet"
		}
		if t := s.LastTerminationState.Terminated; t != nil {
			text += "; it last " + exited(t, now)
		}
		l.warn("%s %s waits: %s", what, s.Name, text)
	case st.Terminated != nil:
		l.warn("%s %s %s", what, s.Name, exited(st.Terminated, now))
	case st.Running == nil:
		l.warn("%s %s waits to be created", what, s.Name)
	}
}

func exited(t *corev1.ContainerStateTerminated, now time.Time) string {
	text := fmt.Sprintf("ended with exit code %d", t.ExitCode)
	if t.Signal != 0 {
		text = fmt.Sprintf("was ended by signal %d", t.Signal)
	}
	if !t.FinishedAt.IsZero() {
		text += " " + ago(now, t.FinishedAt.Time) + " ago"
	}
	if t.Reason != "" && t.Reason != "Error" && t.Reason != "Completed" || t.Message != "" {
		text += ": " + because(t.Reason, brief(strings.TrimSpace(t.Message)))
	}
	return text
}

// gates lists the readiness gates that are not True.
func (l *Lines) gates(p *corev1.Pod) {
	for _, g := range p.Spec.ReadinessGates {
		if !podstatus.ConditionTrue(p.Status.Conditions, g.ConditionType) {
			l.warn("is not ready: its readiness gate %s is not True", g.ConditionType)
		}
	}
}

func (l *Lines) running(p *corev1.Pod, now time.Time) {
	c := podstatus.Condition(p.Status.Conditions, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		text := "its status does not say why"
		if c != nil {
			text = because(c.Reason, c.Message)
		}
		l.warn("is not ready: %s", text)
		return
	}
	restarts, last := int32(0), ""
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		restarts += s.RestartCount
		if t := s.LastTerminationState.Terminated; t != nil {
			last += fmt.Sprintf("; container %s last %s", s.Name, exited(t, now))
		}
	}
	l.info("runs on node %s, and has been ready for %s; %s%s", p.Spec.NodeName, ago(now, c.LastTransitionTime.Time),
		counted(int(restarts), "restart"), last)
}

// events adds the newest warnings that add information to the lines before.
func (l *Lines) events(all []corev1.Event, now time.Time) {
	var warnings []*corev1.Event
	for i := range all {
		if all[i].Type == corev1.EventTypeWarning {
			warnings = append(warnings, &all[i])
		}
	}
	slices.SortStableFunc(warnings, func(a, b *corev1.Event) int {
		return cmp.Or(eventTime(b).Compare(eventTime(a)), cmp.Compare(a.Name, b.Name))
	})
	printed := 0
	for _, e := range warnings {
		message := brief(strings.TrimSpace(e.Message))
		crash := e.Reason == "BackOff" && l.contains("CrashLoopBackOff")
		if crash || l.contains(message) || !strings.Contains(message, " ") { // one word is the reason that a line has
			continue
		}
		l.warn("event %s ago: %s", ago(now, eventTime(e)), because(e.Reason, message))
		if printed++; printed == mostEvents {
			return
		}
	}
}

// eventTime is when an event was last observed.
func eventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// contains reports whether a line before has a text, such as the cause of a failed pull, which statuses and events
// repeat.
func (l *Lines) contains(text string) bool {
	text = unnamed(text)
	return text != "" && slices.ContainsFunc(*l, func(o Line) bool { return strings.Contains(unnamed(o.Text), text) })
}
