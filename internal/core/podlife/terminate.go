package podlife

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podstatus"
	"carob/internal/core/resources"
)

// lookForEnd decides whether the pod must end for a cause from outside (L7.2).
func (m *machine) lookForEnd() {
	phase := m.pod.Status.Phase
	switch {
	case podstatus.Terminal(phase):
		m.end(termination{Cause: "the pod's phase is " + string(phase), Phase: phase, Reason: m.pod.Status.Reason,
			Message:  m.pod.Status.Message,
			Rejected: wasRejected(&m.pod.Status)})
	case m.pod.DeletionTimestamp != nil:
		m.end(termination{Cause: "the pod was deleted"})
	case m.in.Reject != nil:
		m.event(corev1.EventTypeWarning, m.in.Reject.Reason, m.in.Reject.Message, "")
		m.end(termination{Cause: "rejected by the node: " + m.in.Reject.Reason, NoHooks: true, Rejected: true,
			Grace: time.Second,
			Phase: corev1.PodFailed, Reason: m.in.Reject.Reason, Message: rejectedPrefix + m.in.Reject.Message})
	case m.in.Stop != nil:
		e := termination{Cause: "stopped: " + m.in.Stop.Reason, Phase: corev1.PodFailed, Reason: m.in.Stop.Reason,
			Message: m.in.Stop.Message,
			Stopped: true, Evicted: m.in.Stop.Reason == "Evicted"}
		if c := m.in.Stop.Condition; c != nil {
			e.Disrupt = c.DeepCopy()
		}
		m.end(e)
	case m.in.Gone:
		m.end(termination{Cause: "the pod left its source"})
	default:
		m.lookForDeadline()
	}
}

// rejectedPrefix begins the message of a pod that the node refused (L3.12).
const rejectedPrefix = "Pod was rejected: "

// wasRejected reports whether the node refused the pod before the agent was restarted: its
// status stays the short one (L3.13).
func wasRejected(st *corev1.PodStatus) bool {
	return st.Phase == corev1.PodFailed && strings.HasPrefix(st.Message, rejectedPrefix)
}

const (
	deadlineReason  = "DeadlineExceeded"
	deadlineMessage = "Pod was active on the node longer than the specified deadline"
)

// lookForDeadline ends a pod that was active for too long (L4.6).
func (m *machine) lookForDeadline() {
	if m.awaitDeadline() {
		m.end(termination{Cause: "active deadline exceeded", Phase: corev1.PodFailed, Reason: deadlineReason,
			Message: deadlineMessage})
	}
}

// lookForLateDeadline lets a static pod fail at its deadline of which nothing has been left to run before: that end has
// no phase (L4.6, L7.115).
func (m *machine) lookForLateDeadline() {
	end := &m.s.End
	if m.isStatic() && end.Phase == "" && !podstatus.Terminal(m.s.Last.Phase) && m.pod.DeletionTimestamp == nil &&
		!m.in.Gone && m.awaitDeadline() {
		end.Phase, end.Reason, end.Message = corev1.PodFailed, deadlineReason, deadlineMessage
	}
}

// awaitDeadline wakes the pod at its active deadline, and reports whether it has passed, with the event.
func (m *machine) awaitDeadline() bool {
	limit := m.pod.Spec.ActiveDeadlineSeconds
	if limit == nil {
		return false
	}
	at := m.s.Active.Add(time.Duration(*limit) * time.Second)
	if m.now.Before(at) {
		m.wake(at)
		return false
	}
	m.event(corev1.EventTypeNormal, deadlineReason, deadlineMessage, "")
	return true
}

// end makes the pod Terminating. Life never goes back.
func (m *machine) end(e termination) {
	e.Since = m.now
	if e.Grace == 0 {
		e.Grace = m.effectiveGrace()
	}
	m.s.End = e
	m.s.Life = Terminating
}

// effectiveGrace is the current grace period of the whole pod (L7.15).
func (m *machine) effectiveGrace() time.Duration {
	g := minStopGrace
	switch {
	case m.pod.DeletionGracePeriodSeconds != nil:
		g = seconds(*m.pod.DeletionGracePeriodSeconds)
	case m.pod.Spec.TerminationGracePeriodSeconds != nil:
		g = seconds(*m.pod.Spec.TerminationGracePeriodSeconds)
	}
	if m.in.Stop != nil && m.in.Stop.Grace != nil {
		g = min(g, *m.in.Stop.Grace)
	}
	return max(g, time.Second)
}

// longest is a grace period that is as good as none: 100 years. Sums of it and of times are in range.
const longest = 100 * 365 * 24 * time.Hour

// seconds are a number of seconds of a spec, which may be out of the range of a duration.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(longest/time.Second))) * time.Second
}

// terminate ends everything that runs: work in flight is aborted, containers are
// stopped, then sandboxes (L7.25).
func (m *machine) terminate() {
	end := &m.s.End
	if m.pod.DeletionTimestamp != nil || m.in.Stop != nil {
		end.Grace = min(end.Grace, m.effectiveGrace())
	}
	busy := false
	for i := range m.s.InFlight {
		f := &m.s.InFlight[i]
		switch f.Op {
		case opPrepareVolumes, opCreateSandbox, opPull, opStart, opPostStart, opAdmitResize, opResizePod, opResize:
			m.cancel(f)
			busy = true
			m.waitFor(f, "abort of "+string(f.Op), f.Object)
		case opProbe:
			if !m.probesWhileEnding(f.Object, ProbeType(f.Detail)) {
				m.cancel(f)
			}
		default: // part of the termination
		}
	}
	if m.awaitDrain() {
		m.advanceStops(true) // stops that were ordered before the pod ended
		return
	}
	left := max(end.Since.Add(end.Grace).Sub(m.now), 0)
	if m.stopAll(end.Cause, left, end.NoHooks) || busy || !m.stopSandboxes(end.Cause) {
		m.reportLate()
		return
	}
	if m.in.Observed.Devices.Held { // other pods may get them once the pod's phase is terminal (S9.55)
		m.do(ReleaseDevices{}, "all containers have ended", "devices", "")
		return
	}
	m.s.Life = Terminated
}

// reportLate reports once that a pod that the node ends takes too long (L7.18).
func (m *machine) reportLate() {
	end := &m.s.End
	if !end.Stopped || end.Late {
		return
	}
	late := end.Since.Add(max(10*time.Second, end.Grace*3/2))
	if m.now.Before(late) {
		m.wake(late)
		return
	}
	end.Late = true
	m.event(corev1.EventTypeWarning, "ExceededGracePeriod",
		"Container runtime did not kill the pod within specified grace period.", "")
}

// cleanUp removes the leftovers of an ended pod: volumes, directories and cgroup at once;
// containers, sandboxes and the API object when it is deleted (L7.35, L7.36, L7.40).
func (m *machine) cleanUp() {
	o := &m.in.Observed
	deleting := m.pod.DeletionTimestamp != nil
	if o.Volumes.Present {
		m.do(RemoveVolumes{}, "all containers have ended", "volumes", "")
	} else if deleting && !m.in.Gone && !m.s.End.Deleted && !m.isMirror() {
		m.do(DeletePod{}, "nothing of the pod is left on the node", "API", "")
	}
	switch {
	case deleting || m.in.Gone:
		m.removeSandboxes()
	case m.s.End.Evicted:
		for i := range o.Containers {
			m.remove(&o.Containers[i], true, "the pod was evicted")
		}
	case m.in.Node.DiskShort:
		for i := range o.Containers {
			m.remove(&o.Containers[i], true, "the node is short of disk")
		}
	}
	if m.in.Gone && !o.Volumes.Present && len(o.Sandboxes) == 0 && len(o.Containers) == 0 && len(m.s.InFlight) == 0 {
		m.s.Life = Finished
	}
}

// removeSandboxes removes the stopped sandboxes with all their containers, and containers
// without a sandbox.
func (m *machine) removeSandboxes() {
	o := &m.in.Observed
	for i := range o.Sandboxes {
		s := &o.Sandboxes[i]
		m.try(RemoveSandbox{SandboxID: s.ID}, "the pod was deleted", "sandbox", s.ID)
	}
	if len(o.Sandboxes) == 0 {
		for i := range o.Containers {
			m.remove(&o.Containers[i], true, "the pod was deleted")
		}
	}
}

// isMirror reports whether the pod is the API's copy of a static pod, which is deleted elsewhere
// (L7.114).
func (m *machine) isMirror() bool {
	_, ok := m.pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// isStatic reports whether the pod comes from a file or URL (L7.115).
func (m *machine) isStatic() bool { return resources.IsStatic(m.pod) }
