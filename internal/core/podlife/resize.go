package podlife

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// resizeRetry is how long a deferred resize rests when nothing frees room (L3.123).
const resizeRetry = 3 * time.Minute

const notResizable = "In-place resize of static pods is not supported"

// resizing is the memory of resources that change in place (L3.120–L3.128). What
// the node has granted may lag behind the spec:
//
//	at rest ──spec asks for more or less──▶ asked ──refused──▶ pending ──room, or 3 min──▶ asked
//	   ▲                                      └──granted──▶ widen ──▶ containers ──▶ narrow ──▶ at rest
//
// The pod's group is widened first and narrowed last, containers that shrink go
// before those that grow (L3.125). A new spec may be asked for at any stage.
type resizing struct {
	Known      bool
	Generation int64                        // newest spec that was compared with what is granted
	Ahead      bool                         // that spec wants something else
	Containers []grant                      // replaced as a whole, never changed
	Pod        *corev1.ResourceRequirements // likewise
	Granted    int64                        // generation that the grant is of
	Pending    refusal
	Stage      resizeStage
	Since      time.Time // begin of the stage widen
	Error      string    // the last failure since then
	Failed     time.Time // when it was first seen
}

// grant is what a container may use.
type grant struct {
	Name      string
	Resources corev1.ResourceRequirements
}

// refusal is why a resize is not granted.
type refusal struct {
	Generation int64
	Reason     string // of the condition: Deferred or Infeasible
	Cause      string // of the admission
	Message    string
	Since      time.Time // the condition's transition
	Again      time.Time // next try; zero: none
	Vacated    int64     // Node.Vacated at the last try
}

type resizeStage string

const (
	resizeIdle       resizeStage = ""
	resizeWiden      resizeStage = "widen"
	resizeContainers resizeStage = "containers"
	resizeNarrow     resizeStage = "narrow"
)

// resizeDue says what a running container needs to get what is granted.
type resizeDue struct {
	Due     bool
	Restart bool // its policy wants a restart for it (L3.126)
	Shrinks bool
}

func grantsOf(pod *corev1.Pod) (containers []grant, whole *corev1.ResourceRequirements) {
	containers = make([]grant, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			containers = append(containers, grant{list[i].Name, *list[i].Resources.DeepCopy()})
		}
	}
	return containers, pod.Spec.Resources.DeepCopy()
}

// granted is what the container may use now.
func (m *machine) granted(c *corev1.Container) *corev1.ResourceRequirements {
	if m.s.Resize.Ahead {
		if g := m.s.Resize.grant(c.Name); g != nil {
			return g
		}
	}
	return &c.Resources
}

func (r *resizing) grant(container string) *corev1.ResourceRequirements {
	for i := range r.Containers {
		if r.Containers[i].Name == container {
			return &r.Containers[i].Resources
		}
	}
	return nil
}

// covers reports whether the grant is what the pod's spec wants.
func (r *resizing) covers(pod *corev1.Pod) bool {
	if (r.Pod == nil) != (pod.Spec.Resources == nil) || r.Pod != nil && !sameResources(r.Pod, pod.Spec.Resources) {
		return false
	}
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if g := r.grant(list[i].Name); g == nil || !sameResources(g, &list[i].Resources) {
				return false
			}
		}
	}
	return true
}

// allocated is the pod as the node runs it: with what is granted in place of what
// is wanted, and the generation that brought it.
func (m *machine) allocated() *corev1.Pod {
	r := &m.s.Resize
	if !r.Ahead {
		return m.pod
	}
	p := m.pod.DeepCopy()
	p.Generation = r.Granted
	for _, list := range [...][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if g := r.grant(list[i].Name); g != nil {
				list[i].Resources = *g.DeepCopy()
			}
		}
	}
	p.Spec.Resources = r.Pod.DeepCopy()
	return p
}

// compareResources finds out whether the spec wants other resources than granted.
func (m *machine) compareResources() {
	r := &m.s.Resize
	if !r.Known {
		*r = resizing{Known: true, Generation: m.pod.Generation, Granted: m.pod.Generation}
		r.Containers, r.Pod = grantsOf(m.pod)
		return
	}
	if r.Generation == m.pod.Generation {
		return
	}
	r.Generation = m.pod.Generation
	if r.Ahead = !r.covers(m.pod); !r.Ahead {
		r.Granted, r.Pending = r.Generation, refusal{} // taken back (L3.124)
	}
}

// askForResize asks the node for what the spec wants beyond the grant (L3.120, L3.123).
func (m *machine) askForResize() {
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
	m.do(AdmitResize{Generation: r.Generation}, "the spec wants other resources", "resize", "")
}

// absorbAdmission takes in the node's word on a resize (L3.120, L3.121).
func (m *machine) absorbAdmission(f flight, o *Outcome) {
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

// refuseResize notes why a resize waits; each reason is told once for a generation (L3.121).
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
			"Pod resize "+cause+": "+resizeText(m.pod, r.Generation, message), "")
	}
}

// grantResize makes the wanted resources the granted ones and begins to bring them in force.
func (m *machine) grantResize() {
	r := &m.s.Resize
	for i := range m.containers {
		c := &m.containers[i]
		old := r.grant(c.spec.Name)
		if old == nil || !c.running() && m.inFlight(opStart, c.spec.Name) == nil {
			continue
		}
		if was, is := inherited(r.Pod, old),
			inherited(m.pod.Spec.Resources, &c.spec.Resources); !sameResources(was, is) {
			c.record.Resize = dueFor(c.spec, was, is, c.record.Resize)
		}
	}
	r.Containers, r.Pod = grantsOf(m.pod)
	r.Ahead, r.Pending, r.Granted = false, refusal{}, r.Generation
	r.Stage, r.Since, r.Error = resizeWiden, m.now, ""
	m.succeeded(opResizePod, "")
	m.event(corev1.EventTypeNormal, "ResizeStarted", "Pod resize started: "+resizeText(m.pod, r.Granted, ""), "")
}

// inherited is what a container runs with: what it names, and the limits of its pod
// for those that it has none of (L3.117j).
func inherited(pod, own *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if pod == nil {
		return own
	}
	all := own
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q := own.Limits[name]; !q.IsZero() {
			continue
		}
		if all == own {
			all = own.DeepCopy()
		}
		overlay(&all.Limits, pod.Limits, name)
	}
	return all
}

// dueFor compares what a container has with what it gets, limits of the pod included.
func dueFor(c *corev1.Container, had, gets *corev1.ResourceRequirements, before resizeDue) resizeDue {
	d := resizeDue{Due: true, Restart: before.Restart}
	grows := false
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		was, is := had.Limits[name], gets.Limits[name]
		wasRequest, isRequest := had.Requests[name], gets.Requests[name]
		limit := is.Cmp(was)
		if limit == 0 && isRequest.Cmp(wasRequest) == 0 {
			continue
		}
		d.Shrinks = d.Shrinks || limit < 0 && !is.IsZero()
		grows = grows || limit > 0
		for i := range c.ResizePolicy {
			if p := &c.ResizePolicy[i]; p.ResourceName == name && p.RestartPolicy == corev1.RestartContainer {
				d.Restart = true
			}
		}
	}
	d.Shrinks = d.Shrinks && !grows
	return d
}

// advanceResize brings what was granted in force, step by step (L3.125).
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

// resizeContainers resizes the containers that shrink, or the others; true while one is left.
func (m *machine) resizeContainers(shrinking bool) (busy bool) {
	for i := range m.containers {
		c := &m.containers[i]
		if !c.record.Resize.Due || c.record.Resize.Shrinks != shrinking {
			continue
		}
		if !c.running() {
			if f := m.inFlight(opStart, c.spec.Name); f == nil {
				c.record.Resize = resizeDue{} // its next instance gets what is granted
				continue
			}
			busy = true
			continue
		}
		busy = true
		if c.record.Resize.Restart || m.stopOf(c.newest.ID) != nil {
			continue // ends first
		}
		m.do(Resize{Container: c.spec.Name, ContainerID: c.newest.ID, Resources: *m.s.Resize.grant(c.spec.Name),
			Granted: m.s.Resize.Granted},
			"resources were granted", "resize", c.spec.Name)
	}
	return busy
}

// absorbResize takes in the end of a step of a resize (L3.122).
func (m *machine) absorbResize(f flight, o *Outcome) {
	r := &m.s.Resize
	problem := ""
	switch {
	case o.Err != nil:
		if o.Err.Reason == Aborted || f.Op == opResize && !m.alive(f.Object) {
			return
		}
		problem = o.Err.Message
	case f.Op == opResize && f.Attempt == r.Granted && !m.grantInForce(f.Object):
		problem = "the runtime reports other resources after it was asked to change them"
	}
	if problem != "" {
		m.failed(f.Op, f.Object, problem, o.At)
		if r.Error != problem {
			if r.Error == "" {
				r.Failed = m.now
			}
			r.Error = problem
			m.event(corev1.EventTypeWarning, "ResizeError",
				"Pod resize error: "+resizeText(m.allocated(), r.Granted, r.Error), "")
		}
		return
	}
	m.succeeded(f.Op, f.Object)
	if f.Attempt != r.Granted {
		return // of an older grant: done again
	}
	switch {
	case f.Op == opResize:
		for i := range m.containers {
			if c := &m.containers[i]; c.newest != nil && c.newest.ID == f.Object {
				c.record.Resize = resizeDue{}
			}
		}
	case f.Detail == string(r.Stage) && r.Stage == resizeWiden:
		r.Stage = resizeContainers
	case f.Detail == string(r.Stage):
		r.Stage, r.Error = resizeIdle, ""
		m.s.Resources = podResources{}
		m.event(corev1.EventTypeNormal, "ResizeCompleted",
			"Pod resize completed: "+resizeText(m.allocated(), r.Granted, ""), "")
	}
}

// grantInForce reports whether a container runs with what it was granted, as far as
// the runtime tells.
func (m *machine) grantInForce(id string) bool {
	inst := m.instance(id)
	if inst == nil || inst.Resources == nil || inst.State != ContainerRunning {
		return true
	}
	own := m.s.Resize.grant(inst.Name)
	if own == nil {
		return true
	}
	want := inherited(m.s.Resize.Pod, own)
	other := func(name corev1.ResourceName, least int64) bool {
		_, limited := want.Limits[name]
		return limited && differs(want.Limits, inst.Resources.Limits, name, least)
	}
	_, told := inst.Resources.Requests[corev1.ResourceCPU]
	return !other(corev1.ResourceCPU, leastCPULimit) && !other(corev1.ResourceMemory, 0) &&
		!(told && differs(want.Requests, inst.Resources.Requests, corev1.ResourceCPU, leastCPURequest))
}

// resizeText names the resources of a resize in an event.
func resizeText(pod *corev1.Pod, generation int64, problem string) string {
	type sized struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	list := func(from []corev1.Container) (to []sized) {
		for i := range from {
			to = append(to, sized{from[i].Name, from[i].Resources})
		}
		return to
	}
	b, err := json.Marshal(struct {
		Resources      *corev1.ResourceRequirements `json:"resources,omitempty"`
		InitContainers []sized                      `json:"initContainers,omitempty"`
		Containers     []sized                      `json:"containers,omitempty"`
		Generation     int64                        `json:"generation"`
		Error          string                       `json:"error,omitempty"`
	}{pod.Spec.Resources, list(pod.Spec.InitContainers), list(pod.Spec.Containers), generation, problem})
	if err != nil {
		return fmt.Sprintf("{%q:%d}", "generation", generation)
	}
	return string(b)
}

// resizeConditions are there only while they apply (L4.56).
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

// recoverResize rebuilds what was granted: the status says what containers were
// allocated and run with. A resize that was being brought in force begins over.
func recoverResize(pod *corev1.Pod, state *State) resizing {
	r := resizing{Known: true, Generation: -1, Granted: pod.Generation}
	r.Containers, r.Pod = grantsOf(pod)
	progress := condition(pod.Status.Conditions, corev1.PodResizeInProgress)
	all := progress != nil && progress.ObservedGeneration == pod.Generation // the whole spec was granted
	if !all {
		recoverPodGrant(pod, r.Pod)
	}
	for _, list := range [...][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			g := r.grant(s.Name)
			if g == nil || s.Resources == nil {
				continue
			}
			before := g.DeepCopy()
			lay(&before.Requests, s.AllocatedResources)
			lay(&before.Limits, s.Resources.Limits)
			if !all {
				*g = *before.DeepCopy()
			}
			if spec := findContainer(pod, s.Name); progress != nil && spec != nil && s.State.Running != nil {
				had := inherited(r.Pod, before).DeepCopy()
				lay(&had.Requests, s.Resources.Requests)
				lay(&had.Limits, s.Resources.Limits)
				state.record(s.Name).Resize = dueFor(spec, had, inherited(r.Pod, g), resizeDue{})
			}
		}
	}
	if progress != nil {
		r.Granted = progress.ObservedGeneration
		r.Stage, r.Since = resizeWiden, progress.LastTransitionTime.Time
	}
	if p := condition(pod.Status.Conditions, corev1.PodResizePending); p != nil {
		r.Pending = refusal{Generation: p.ObservedGeneration, Reason: p.Reason, Cause: p.Reason, Message: p.Message,
			Since: p.LastTransitionTime.Time}
		if p.Reason == corev1.PodReasonDeferred {
			r.Pending.Again, r.Pending.Vacated = p.LastTransitionTime.Time, -1 // asked again at the first look
		}
	}
	return r
}

// recoverPodGrant finds what the pod as a whole was granted: its status says so,
// with the overhead of its runtime class in it (L4.32a).
func recoverPodGrant(pod *corev1.Pod, grant *corev1.ResourceRequirements) {
	st := &pod.Status
	if grant == nil || st.AllocatedResources == nil || st.Resources == nil {
		return
	}
	// The sums of the containers stand there, too, for what the pod does not name.
	lay(&grant.Requests, named(without(st.AllocatedResources, pod.Spec.Overhead), grant.Requests))
	lay(&grant.Limits, named(without(st.Resources.Limits, pod.Spec.Overhead), grant.Limits))
}

// named is what of a list stands in other, too.
func named(list, other corev1.ResourceList) corev1.ResourceList {
	maps.DeleteFunc(list, func(name corev1.ResourceName, _ resource.Quantity) bool { _, ok := other[name]; return !ok })
	return list
}

func without(list, less corev1.ResourceList) corev1.ResourceList {
	list = list.DeepCopy()
	for name, q := range less { // any order: each name by itself
		if have, ok := list[name]; ok {
			have.Sub(q)
			list[name] = have
		}
	}
	return list
}

// lay makes cpu and memory of a list what they are in from.
func lay(list *corev1.ResourceList, from corev1.ResourceList) {
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if _, named := (*list)[name]; !named {
			continue // no resize takes a request or limit away: what shows there is the pod's (L3.117j)
		}
		if _, has := from[name]; !has || differs(*list, from, name, 0) {
			layOne(list, from, name)
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
