package podlife

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife/allocation"
	"carob/internal/core/podstatus"
)

// resizeRetry is how long a deferred resize waits when no resources are freed (L3.123).
const resizeRetry = 3 * time.Minute

const notResizable = "In-place resize of static pods is not supported"

// resizing is the state of an in-place resize (L3.120–L3.128). What the node has granted may lag
// behind the spec:
//
//	at rest ──spec differs──▶ requested ──refused──▶ pending ──room, or 3 min──▶ requested
//	   ▲                       └──granted──▶ widen ──▶ containers ──▶ narrow ──▶ at rest
//
// The pod's group is widened first and narrowed last, containers that shrink go before those that grow
// (L3.125). A new spec may be requested at any stage.
type resizing struct {
	Known      bool
	Generation int64          // newest spec that was compared with what is granted
	Ahead      bool           // that spec requests other resources
	Allocated  allocation.Pod // what the node granted
	Granted    int64          // generation that was granted
	Pending    refusal
	Stage      resizeStage
	Since      time.Time // begin of the stage widen
	Error      string    // the last failure since then
	Failed     time.Time // when it was first seen
}

// refusal is the reason why a resize is not granted.
type refusal struct {
	Generation int64
	Reason     string // of the condition: Deferred or Infeasible
	Cause      string // of the admission
	Message    string
	Since      time.Time // the condition's transition
	Again      time.Time // next retry; zero: none
	Vacated    int64     // Node.Vacated at the last try
}

type resizeStage string

const (
	resizeIdle       resizeStage = ""
	resizeWiden      resizeStage = "widen"
	resizeContainers resizeStage = "containers"
	resizeNarrow     resizeStage = "narrow"
)

// granted returns the resources that the container may use now.
func (m *machine) granted(c *corev1.Container) *corev1.ResourceRequirements {
	if m.s.Resize.Ahead {
		if g := m.s.Resize.Allocated.For(c.Name); g != nil {
			return g
		}
	}
	return &c.Resources
}

// allocated returns the pod as the node runs it: with the allocated resources instead of the
// requested ones, and the generation whose resources they are.
func (m *machine) allocated() *corev1.Pod {
	r := &m.s.Resize
	if !r.Ahead {
		return m.pod
	}
	p := r.Allocated.Apply(m.pod)
	p.Generation = r.Granted
	return p
}

// compareResources checks whether the spec requests other resources than granted.
func (m *machine) compareResources() {
	r := &m.s.Resize
	if !r.Known {
		*r = resizing{Known: true, Generation: m.pod.Generation, Granted: m.pod.Generation}
		r.Allocated = allocation.Of(m.pod)
		return
	}
	if r.Generation == m.pod.Generation {
		return
	}
	r.Generation = m.pod.Generation
	if r.Ahead = !r.Allocated.Covers(m.pod); !r.Ahead {
		r.Granted, r.Pending = r.Generation, refusal{} // undone in the spec (L3.124)
	}
}

// requestResize requests from the node the resources that the spec requests beyond the grant
// (L3.120, L3.123).
func (m *machine) requestResize() {
	r := &m.s.Resize
	f := m.inFlight(opAdmitResize, "")
	if f != nil && f.Attempt != r.Generation {
		m.cancel(f)
		return
	}
	if !r.Ahead {
		return
	}
	p := &r.Pending
	switch {
	case f != nil:
		m.waitFor(f, "resize", "")
		return
	case p.Generation == r.Generation && p.Again.IsZero():
		return // infeasible
	case m.isStatic():
		m.refuseResize(corev1.PodReasonInfeasible, corev1.PodReasonInfeasible, notResizable)
		return
	case p.Generation == r.Generation && p.Vacated == m.in.Node.Vacated && m.now.Before(p.Again):
		m.wait(Wait{For: "resize", Since: p.Since, Until: p.Again, LastErr: p.Message})
		return
	}
	p.Vacated = m.in.Node.Vacated
	m.do(AdmitResize{Generation: r.Generation}, "the spec requests other resources", "resize", "")
}

// applyAdmission applies the node's decision about a resize (L3.120, L3.121).
func (m *machine) applyAdmission(f flight, o *Outcome) {
	switch {
	case f.Attempt != m.s.Resize.Generation || !m.s.Resize.Ahead || m.s.Life != Syncing:
	case o.Err == nil:
		m.grantResize()
	case o.Err.Reason == Aborted:
	case o.Err.Permanent:
		m.refuseResize(corev1.PodReasonInfeasible, corev1.PodReasonInfeasible, o.Err.Message)
	default:
		m.refuseResize(corev1.PodReasonDeferred, o.Err.Reason, o.Err.Message)
	}
}

// refuseResize records why a resize waits; each reason is reported once for a generation
// (L3.121).
func (m *machine) refuseResize(reason, cause, message string) {
	r := &m.s.Resize
	old := r.Pending
	r.Pending = refusal{Generation: r.Generation, Reason: reason, Cause: cause, Message: message, Since: old.Since,
		Vacated: old.Vacated}
	if old.Reason != reason {
		r.Pending.Since = m.now
	}
	if reason == corev1.PodReasonDeferred {
		r.Pending.Again = m.now.Add(resizeRetry)
	}
	if old.Generation != r.Generation || old.Reason != reason {
		m.event(corev1.EventTypeWarning, "Resize"+reason,
			"Pod resize "+cause+": "+allocation.EventText(m.pod, r.Generation, message), "")
	}
}

// grantResize grants the requested resources and begins to apply them.
func (m *machine) grantResize() {
	r := &m.s.Resize
	for i := range m.containers {
		c := &m.containers[i]
		old := r.Allocated.For(c.spec.Name)
		if old == nil || !c.running() && m.inFlight(opStart, c.spec.Name) == nil {
			continue
		}
		was := allocation.Effective(r.Allocated.Whole, old)
		is := allocation.Effective(m.pod.Spec.Resources, &c.spec.Resources)
		if !allocation.Same(was, is) {
			c.record.Resize = allocation.ChangeOf(c.spec, was, is, c.record.Resize)
		}
	}
	r.Allocated = allocation.Of(m.pod)
	r.Ahead, r.Pending, r.Granted = false, refusal{}, r.Generation
	r.Stage, r.Since, r.Error = resizeWiden, m.now, ""
	m.succeeded(opResizePod, "")
	m.event(corev1.EventTypeNormal, "ResizeStarted", "Pod resize started: "+allocation.EventText(m.pod, r.Granted, ""), "")
}

// advanceResize applies what was granted, step by step (L3.125).
func (m *machine) advanceResize() {
	r := &m.s.Resize
	if r.Stage == resizeIdle || !m.in.Observed.Volumes.Mounted {
		return
	}
	if r.Stage == resizeContainers {
		if m.resizeContainers(true) || m.resizeContainers(false) {
			return
		}
		r.Stage = resizeNarrow
	}
	m.do(ResizePod{Widen: r.Stage == resizeWiden, Granted: r.Granted}, "resources were granted", "resize", "")
}

// resizeContainers resizes the containers that shrink, or the others; it returns true while one
// is left.
func (m *machine) resizeContainers(shrinking bool) (busy bool) {
	for i := range m.containers {
		c := &m.containers[i]
		if !c.record.Resize.Due || c.record.Resize.Shrinks != shrinking {
			continue
		}
		if !c.running() {
			if f := m.inFlight(opStart, c.spec.Name); f == nil {
				c.record.Resize = allocation.Change{} // its next instance gets the granted resources
				continue
			}
			busy = true
			continue
		}
		busy = true
		if c.record.Resize.Restart || m.stopOf(c.newest.ID) != nil {
			continue // ends first
		}
		m.do(Resize{Container: c.spec.Name, ContainerID: c.newest.ID, Resources: *m.s.Resize.Allocated.For(c.spec.Name),
			Granted: m.s.Resize.Granted},
			"resources were granted", "resize", c.spec.Name)
	}
	return busy
}

// applyResize applies the end of a step of a resize (L3.122).
func (m *machine) applyResize(f flight, o *Outcome) {
	r := &m.s.Resize
	problem := ""
	switch {
	case o.Err != nil:
		if o.Err.Reason == Aborted || f.Op == opResize && !m.alive(f.Object) {
			return
		}
		problem = o.Err.Message
	case f.Op == opResize && f.Attempt == r.Granted && !m.grantInForce(f.Object):
		problem = "the runtime reports other resources than those it was set to"
	}
	if problem != "" {
		m.failed(f.Op, f.Object, problem, o.At)
		if r.Error != problem {
			if r.Error == "" {
				r.Failed = m.now
			}
			r.Error = problem
			m.event(corev1.EventTypeWarning, "ResizeError",
				"Pod resize error: "+allocation.EventText(m.allocated(), r.Granted, r.Error), "")
		}
		return
	}
	m.succeeded(f.Op, f.Object)
	if f.Attempt != r.Granted {
		return // for an older grant: it is repeated
	}
	switch {
	case f.Op == opResize:
		for i := range m.containers {
			if c := &m.containers[i]; c.newest != nil && c.newest.ID == f.Object {
				c.record.Resize = allocation.Change{}
			}
		}
	case f.Detail == string(r.Stage) && r.Stage == resizeWiden:
		r.Stage = resizeContainers
	case f.Detail == string(r.Stage):
		r.Stage, r.Error = resizeIdle, ""
		m.s.Resources = wholeResources{}
		m.event(corev1.EventTypeNormal, "ResizeCompleted",
			"Pod resize completed: "+allocation.EventText(m.allocated(), r.Granted, ""), "")
	}
}

// grantInForce reports whether a container runs with its granted resources, as far as the runtime
// reports it.
func (m *machine) grantInForce(id string) bool {
	inst := m.instance(id)
	if inst == nil || inst.Resources == nil || inst.State != ContainerRunning {
		return true
	}
	own := m.s.Resize.Allocated.For(inst.Name)
	if own == nil {
		return true
	}
	want := allocation.Effective(m.s.Resize.Allocated.Whole, own)
	return allocation.Reached(want, m.reported(want, inst.Resources))
}

// resizeConditions exist only while they apply (L4.56).
func (m *machine) resizeConditions() []corev1.PodCondition {
	r := &m.s.Resize
	if m.s.Life != Syncing {
		return nil // a pod that ends is not resized
	}
	var list []corev1.PodCondition
	if p := &r.Pending; p.Reason != "" {
		list = append(list, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
			ObservedGeneration: p.Generation,
			LastTransitionTime: second(p.Since), Reason: p.Reason, Message: p.Message})
	}
	if r.Stage != resizeIdle {
		c := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue,
			ObservedGeneration: r.Granted, LastTransitionTime: second(r.Since)}
		if r.Error != "" {
			c.Reason, c.Message, c.LastTransitionTime = corev1.PodReasonError, r.Error, second(r.Failed)
		}
		list = append(list, c)
	}
	return list
}

// recoverResize rebuilds the allocation of the pod from its status. A resize that was in
// progress starts over.
func recoverResize(pod *corev1.Pod, state *State) resizing {
	r := resizing{Known: true, Generation: -1}
	r.Allocated, r.Granted = recoverAllocation(pod)
	if progress := podstatus.Condition(pod.Status.Conditions, corev1.PodResizeInProgress); progress != nil {
		r.Stage, r.Since = resizeWiden, progress.LastTransitionTime.Time
		recoverChanges(pod, state, &r.Allocated)
	}
	if p := podstatus.Condition(pod.Status.Conditions, corev1.PodResizePending); p != nil {
		r.Pending = refusal{Generation: p.ObservedGeneration, Reason: p.Reason, Cause: p.Reason, Message: p.Message,
			Since: p.LastTransitionTime.Time}
		if p.Reason == corev1.PodReasonDeferred {
			r.Pending.Again, r.Pending.Vacated = p.LastTransitionTime.Time, -1 // requested again by the first Step
		}
	}
	return r
}

// recoverAllocation finds in the status of a pod what the node has granted it, and the generation that was granted: an
// earlier one if the spec requests other resources.
func recoverAllocation(pod *corev1.Pod) (allocation.Pod, int64) {
	progress := podstatus.Condition(pod.Status.Conditions, corev1.PodResizeInProgress)
	current := progress != nil && progress.ObservedGeneration == pod.Generation // the whole spec was admitted
	a := allocation.Recover(pod, current)
	switch {
	case progress != nil:
		return a, progress.ObservedGeneration
	case a.Covers(pod):
		return a, pod.Generation
	}
	return a, pod.Generation - 1
}

// RecoverAllocated returns the pod as the node ran it before the agent was restarted, which is Output.Allocated of its
// first Step: the node admits it again with these resources, not with those of a resize that was deferred, or requested
// while the agent was away (L3.10).
func RecoverAllocated(pod *corev1.Pod) *corev1.Pod {
	if len(pod.Status.ContainerStatuses)+len(pod.Status.InitContainerStatuses) == 0 {
		return pod
	}
	a, generation := recoverAllocation(pod)
	if a.Covers(pod) {
		return pod
	}
	p := a.Apply(pod)
	p.Generation = generation
	return p
}

// recoverChanges records which running containers do not have their allocated resources.
func recoverChanges(pod *corev1.Pod, state *State, allocated *allocation.Pod) {
	for _, list := range [...][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			if spec := findContainer(pod, s.Name); spec != nil && s.State.Running != nil && s.Resources != nil {
				state.record(s.Name).Resize = allocated.Outstanding(spec, s)
			}
		}
	}
}

func findContainer(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
