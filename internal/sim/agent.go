package sim

import (
	"context"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podstatus"
)

var ctx = context.Background()

// agent drives podlife like the node agent: one owner per pod builds the Input, calls Step after a
// change, an outcome, or at Wake, and begins the actions.
type agent struct {
	w       *world
	down    bool
	life    int // number of crashes
	began   time.Time
	vacated int64 // counts how often resources became free on the node
	owners  []*owner
}

// add creates the owner of a pod. The first list of a new agent is a consistent read.
func (a *agent) add(o *object) {
	if a.down || a.find(o) != nil {
		return
	}
	w := a.w
	own := &owner{w: w, object: o, life: a.life, pod: o.pod, number: o.number, gone: !o.exists, stale: true}
	a.owners = append(a.owners, own)
	if w.joined != nil && !own.gone {
		o.held, o.refused = w.joined.place(own)
	}
	own.hold = o.held
	own.runs = own.pod
	own.published, own.last = own.pod.Status, own.pod.Status
	if o.refused != nil && own.pod.DeletionTimestamp == nil && !podstatus.Terminal(own.pod.Status.Phase) && !own.gone {
		own.rejected = o.refused
		o.requestDeletion(w.loop.now, time.Second)
	}
	if own.gone { // only the runtime has it (L7.17)
		p := own.pod.DeepCopy()
		grace := int64(1)
		p.Spec.TerminationGracePeriodSeconds = &grace
		for _, c := range containers(p) { // the runtime reports names and images only
			c.Lifecycle, c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = nil, nil, nil, nil
		}
		if w.joined != nil {
			p.Status, own.unseen = corev1.PodStatus{}, true // no runtime reports it
			own.published, own.last = p.Status, p.Status
		}
		own.pod, own.runs = p, p
		o.requestDeletion(w.loop.now, time.Second)
	}
	if !allocated(own.pod) {
		o.granted = append(o.granted, own.pod) // admitted without a check (L3.10)
	}
	w.logf("%s is taken over, gone=%v", o.pod.Name, own.gone)
	own.step()
}

// allocated reports whether the status of a pod lists the resources allocated to each container.
func allocated(p *corev1.Pod) bool {
	n := 0
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if list[i].Resources != nil {
				n++
			}
		}
	}
	return n == len(containers(p))
}

func (a *agent) find(o *object) *owner {
	for _, own := range a.owners {
		if own.object == o {
			return own
		}
	}
	return nil
}

// notify reports a change in the API server to the agent, with a delay. Notifications may overtake
// each other; the agent drops those older than its version.
func (a *agent) notify(o *object) {
	w, pod, number, exists, life := a.w, o.pod, o.number, o.exists, a.life
	w.after(w.upTo(50*time.Millisecond)+w.away(), func() {
		own := a.find(o)
		if own == nil || a.life != life || number < own.number {
			return
		}
		own.number = number
		if !exists {
			own.gone = true
			if w.chance(0.3) { // sees only the removal
				pod = own.pod
			}
			if pod.DeletionGracePeriodSeconds == nil {
				o.requestDeletion(w.loop.now, tgps(pod))
			}
		}
		if d := pod.DeletionGracePeriodSeconds; d != nil {
			o.requestDeletion(w.loop.now, time.Duration(*d)*time.Second)
		}
		before := own.pod
		own.pod = pod
		if w.joined != nil {
			own.inCluster()
		}
		switch {
		case !exists, before.Generation != pod.Generation,
			!reflect.DeepEqual(before.DeletionGracePeriodSeconds, pod.DeletionGracePeriodSeconds):
			w.checkKilledInTime(o)
			own.step()
		case !sameOthers(before, pod), w.chance(0.1):
			own.step() // the others repeat the agent's own writes
		}
	})
}

// sameOthers compares what other writers wrote to two statuses.
func sameOthers(a, b *corev1.Pod) bool {
	others := func(p *corev1.Pod) (n int) {
		for i := range p.Status.Conditions {
			if !podstatus.OwnCondition(p.Status.Conditions[i].Type) {
				n++
			}
		}
		return n
	}
	if others(a) != others(b) {
		return false
	}
	for i := range b.Status.Conditions {
		if c := &b.Status.Conditions[i]; !podstatus.OwnCondition(c.Type) {
			if old := podstatus.Condition(a.Status.Conditions, c.Type); old == nil || *old != *c {
				return false
			}
		}
	}
	return true
}

// receive delivers an event of the runtime; some events are delayed, some are lost.
func (a *agent) receive(e *cri.ContainerEventResponse) {
	if e.GetContainerEventType() == cri.ContainerEventType_CONTAINER_STOPPED_EVENT {
		a.w.containerEnded(e.GetContainerId())
	}
	if a.w.chance(a.w.fault / 2) {
		return
	}
	uid := e.GetPodSandboxStatus().GetMetadata().GetUid()
	delay := a.w.upTo(20 * time.Millisecond)
	if a.w.chance(a.w.fault) {
		delay = a.w.upTo(5 * time.Second)
	}
	a.w.after(delay, func() {
		for _, own := range a.owners {
			if string(own.pod.UID) == uid {
				own.refresh()
				return
			}
		}
	})
}

// relist lists the runtime from time to time, to recover from lost events and to find pods without an owner.
func (a *agent) relist() {
	a.w.after(time.Minute, a.relist)
	if a.down {
		return
	}
	for _, own := range slices.Clone(a.owners) {
		if a.w.silentFor() == 0 && own.listedAnew() {
			own.refresh()
		}
	}
	for _, o := range a.w.pods {
		if a.find(o) == nil && a.w.has(o.pod.UID) {
			a.add(o)
		}
	}
	if a.w.joined != nil {
		a.w.joined.forget()
	}
}

// imagesChanged calls Step for the pods that wait for an image, which may be present now.
func (a *agent) imagesChanged() {
	for _, own := range slices.Clone(a.owners) {
		if !own.lookAt.IsZero() {
			own.stale = true
			own.step()
		}
	}
}

// stepAll calls Step for each pod, because facts of the machine changed.
func (a *agent) stepAll() {
	for _, own := range slices.Clone(a.owners) {
		own.step()
	}
}

// crash ends the agent at once. Calls that reached the runtime may still take effect.
func (a *agent) crash() {
	if a.down || a.w.faultsEnded {
		return
	}
	a.down = true
	a.life++
	a.w.result.Crashes++
	a.w.logf("the agent crashes")
	for _, own := range a.owners {
		own.die()
		for _, f := range own.flights {
			if f.undo != nil {
				f.undo()
			}
			if f.orphan != nil && a.w.chance(0.5) {
				f.orphan()
			}
		}
	}
	a.owners = nil
	a.w.after(a.w.upTo(time.Minute), a.back)
}

// back starts the agent again. In a cluster it waits for the API server.
func (a *agent) back() {
	w := a.w
	if w.joined != nil && w.joined.off {
		return
	}
	if away := w.away(); w.joined != nil && away > 0 {
		w.after(away, a.back)
		return
	}
	w.logf("the agent is back")
	a.down, a.began = false, w.now()
	w.remount()
	for _, o := range w.pods {
		if o.exists || w.has(o.pod.UID) {
			a.add(o)
		}
	}
}

// list returns everything that the runtime has of a pod, oldest first.
func (w *world) list(uid types.UID) ([]*cri.PodSandbox, []*cri.Container) {
	mine := map[string]string{uidLabel: string(uid)}
	s, _ := w.runtime.ListPodSandbox(ctx,
		&cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: mine}})
	c, _ := w.runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: mine}})
	return s.GetItems(), c.GetContainers()
}

// has reports whether the machine has anything of a pod.
func (w *world) has(uid types.UID) bool {
	s, c := w.list(uid)
	return len(s)+len(c) > 0 || w.volumes[uid].Present
}

// remount resets the mounts, because a new agent must set up the volumes again before it may use them.
func (w *world) remount() {
	w.mounts++
	for _, o := range w.pods {
		v := w.volumes[o.pod.UID]
		v.Mounted = false
		w.volumes[o.pod.UID] = v
	}
}
