package podlife

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Step is the whole state machine: it applies what happened, decides what must happen now and
// computes the status to publish. Same arguments, same results. Neither s nor in is changed; the
// caller must not change what Output.Status points to.
func Step(s State, in Input) (State, Output) {
	m := machine{s: s.clone(), in: in, pod: in.Pod, now: in.Now}
	m.open()
	m.compareResources()
	m.applyResults()
	if m.s.Life == Syncing {
		m.lookForEnd()
	}
	if m.s.Life == Syncing {
		m.leaveStopping()
		if cause := m.nothingLeft(); cause != "" {
			m.end(termination{Cause: cause})
		} else {
			m.sync()
		}
	}
	if m.s.Life == Terminating {
		m.terminate()
	}
	if m.s.Life == Terminated {
		m.lookForLateDeadline()
		m.cleanUp()
	}
	m.runProbes()
	m.collectGarbage()
	m.out.Status = m.status()
	m.s.Last = m.out.Status
	m.out.Life = m.s.Life
	m.out.Allocated = m.allocated()
	return m.s, m.out
}

// machine is one call of Step: the input, indexed, and the output so far.
type machine struct {
	s          State
	in         Input
	pod        *corev1.Pod
	now        time.Time
	out        Output
	containers []podContainer // init containers in spec order, then regular, then ephemeral ones

	find lookups

	volumes               []podContainer // image volumes
	volumeImagesRequested bool           // their images were requested in this Step

	sandbox        *Sandbox // the one that the pod runs in; nil when it must be replaced
	sandboxProblem string   // why there is none (L3.57–61)
	resetting      bool     // a restart of all containers is or was in progress in this Step
}

// open completes the state of a new pod, and finds what the rest of Step needs.
func (m *machine) open() {
	if m.s.Life == "" {
		m.s.Life = Syncing
		m.s.Last = *m.pod.Status.DeepCopy()
		if t := m.pod.Status.StartTime; t != nil {
			m.s.StartTime = t.Time
		}
	}
	if m.s.StartTime.IsZero() {
		m.s.StartTime = m.now.Truncate(time.Second)
	}
	if m.s.Active.IsZero() {
		m.s.Active = m.stepTime(m.s.StartTime)
	}
	m.resetting = m.s.RestartAll.Active
	m.index()
	m.findSandbox()
}

// stepTime converts a wall time from elsewhere to the clock of Step. A time later than now
// counts as now: a clock was set back.
func (m *machine) stepTime(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return m.now.Add(-max(m.now.Sub(t), 0))
}

// wait records what the pod waits for, and wakes it at the deadline.
func (m *machine) wait(w Wait) {
	m.out.Waits = append(m.out.Waits, w)
	m.wake(w.Until)
}

// wake requests a Step at t, if that is in the future.
func (m *machine) wake(t time.Time) {
	if t.After(m.now) && (m.out.Wake.IsZero() || t.Before(m.out.Wake)) {
		m.out.Wake = t
	}
}

// lookBy requests a new snapshot at t, or now if t has passed.
func (m *machine) lookBy(t time.Time) {
	if t.Before(m.now) {
		t = m.now
	}
	if m.out.Look.IsZero() || t.Before(m.out.Look) {
		m.out.Look = t
	}
}

func (m *machine) event(kind, reason, message, fieldPath string) {
	m.out.Events = append(m.out.Events, Event{Type: kind, Reason: reason, Message: message, FieldPath: fieldPath})
}

func (m *machine) normal(c *podContainer, reason, message string) {
	m.event(corev1.EventTypeNormal, reason, message, c.fieldPath())
}

func (m *machine) warning(c *podContainer, reason, message string) {
	m.event(corev1.EventTypeWarning, reason, message, c.fieldPath())
}

// podRef is the pod's name inside messages.
func (m *machine) podRef() string {
	var b strings.Builder
	b.WriteString(m.pod.Name)
	b.WriteByte('_')
	b.WriteString(m.pod.Namespace)
	b.WriteByte('(')
	b.WriteString(string(m.pod.UID))
	b.WriteByte(')')
	return b.String()
}
