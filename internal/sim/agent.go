package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
)

var ctx = context.Background()

// agent drives podlife as the node agent does: an owner for each pod gathers the
// Input, calls Step on a change, an outcome or Wake, and begins the actions.
type agent struct {
	w      *world
	down   bool
	life   int // counts crashes
	began  time.Time
	owners []*owner
}

// owner is the driver of one pod.
type owner struct {
	w        *world
	object   *object
	life     int // of the agent
	dead     bool
	pod      *corev1.Pod
	gone     bool
	stop     *podlife.Stop
	state    podlife.State
	stage    podlife.Life
	observed podlife.Observed
	seen     sight
	done     []podlife.Outcome
	probes   []podlife.ProbeResult
	flights  []*flight
	failures []failed
	wake     time.Time
	unwake   func()

	wanted    *corev1.PodStatus // newest status not stored yet
	writing   bool
	published corev1.PodStatus
	ending    time.Time // when Step first ended the pod in this life
	hooks     []hook
}

// sight tells whether the world has changed since one looked.
type sight struct {
	runtime    uint64
	mounts     uint64
	generation int64
}

// add begins to drive a pod.
func (a *agent) add(o *object) {
	if a.down || a.find(o) != nil {
		return
	}
	own := &owner{w: a.w, object: o, life: a.life, pod: o.pod, gone: !o.exists}
	a.owners = append(a.owners, own)
	own.look()
	own.state = podlife.Recover(own.pod, own.observed)
	own.published = own.pod.Status
	if own.gone { // only the runtime knows of it (L7.17)
		p := o.pod.DeepCopy()
		grace := int64(1)
		p.Spec.TerminationGracePeriodSeconds = &grace
		own.pod = p
		o.ask(a.w.loop.now, time.Second)
	}
	a.w.logf("%s is taken over, gone=%v", o.pod.Name, own.gone)
	own.step()
}

func (a *agent) find(o *object) *owner {
	for _, own := range a.owners {
		if own.object == o {
			return own
		}
	}
	return nil
}

// notify tells the agent of a change in the API server, some time later.
func (a *agent) notify(o *object) {
	pod, exists := o.pod, o.exists
	life := a.life
	delay := a.w.upTo(50 * time.Millisecond)
	if away := a.w.apiUp.Sub(a.w.loop.now); away > 0 {
		delay += away
	}
	a.w.after(delay, func() {
		own := a.find(o)
		if own == nil || a.life != life {
			return
		}
		if !exists {
			own.gone = true
			o.ask(a.w.loop.now, tgps(o.pod))
		}
		if !exists && a.w.chance(0.3) { // sees only the removal
			pod = own.pod
		}
		if d := pod.DeletionGracePeriodSeconds; d != nil {
			o.ask(a.w.loop.now, time.Duration(*d)*time.Second)
		}
		if own.pod.Generation > pod.Generation {
			return
		}
		same := reflect.DeepEqual(own.pod.Spec, pod.Spec) && reflect.DeepEqual(own.pod.DeletionGracePeriodSeconds, pod.DeletionGracePeriodSeconds)
		own.pod = pod
		if !same || !exists {
			a.w.checkKilledInTime(o)
			own.step()
		}
	})
}

// hear takes an event of the runtime; some come late, some never.
func (a *agent) hear(e *cri.ContainerEventResponse) {
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

// relist is the safety net under lost events, and finds pods that nobody owns.
func (a *agent) relist() {
	a.w.after(time.Minute, a.relist)
	if a.down {
		return
	}
	for _, own := range slices.Clone(a.owners) {
		own.refresh()
	}
	for _, o := range a.w.pods {
		if s, c := a.w.list(o.pod.UID); a.find(o) == nil && (len(s)+len(c) > 0 || a.w.volumes[o.pod.UID].Present) {
			a.add(o)
		}
	}
}

// crash ends the agent at once. Calls that the runtime has taken up may go on.
func (a *agent) crash() {
	if a.down || a.w.calmed {
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
	a.w.after(a.w.upTo(time.Minute), func() {
		a.w.logf("the agent is back")
		a.down, a.began = false, a.w.now()
		a.w.remount()
		for _, o := range a.w.pods {
			if s, c := a.w.list(o.pod.UID); o.exists || len(s)+len(c) > 0 || a.w.volumes[o.pod.UID].Present {
				a.add(o)
			}
		}
	})
}

func (own *owner) die() {
	own.dead = true
	if own.unwake != nil {
		own.unwake()
	}
}

// refresh looks at the runtime and steps if something changed.
func (own *owner) refresh() {
	if own.dead {
		return
	}
	before := own.observed
	if !own.look() {
		return
	}
	before.Taken = own.observed.Taken
	if !reflect.DeepEqual(before, own.observed) {
		own.step()
	}
}

// step is one turn of the driver.
func (own *owner) step() {
	w := own.w
	if own.dead {
		return
	}
	in := podlife.Input{
		Now: w.now(), Pod: own.pod, Gone: own.gone, Stop: own.stop, Observed: own.observed, Probes: own.probes, Done: own.done,
		Node: podlife.Node{Name: "node", HostIPs: []string{"192.168.0.1"}, RuntimeName: "sim", BootID: fmt.Sprint("boot-", w.boot), AgentStarted: w.agent.began},
	}
	before := own.state
	next, out := podlife.Step(before, in)
	w.result.Steps++
	w.checkStep(own, before, in, next, &out)
	own.state, own.stage = next, out.Life
	own.done, own.probes = nil, nil
	if own.ending.IsZero() && out.Life != podlife.Syncing {
		own.ending = w.loop.now
		if own.object.asked.IsZero() {
			own.object.ask(w.loop.now, tgps(own.pod))
		}
	}
	own.publish(out.Status)
	for _, k := range out.Cancel {
		own.cancel(k)
	}
	for _, b := range out.Begin {
		w.logf("%s begin %s: %s", own.pod.Name, b.Action.Key(), b.Cause)
		w.result.Actions++
		w.checkBegin(own, b.Action, out.Life)
		own.begin(b.Action)
	}
	for _, e := range out.Events {
		w.logf("%s event %s %s", own.pod.Name, e.Reason, e.Message)
	}
	if !out.Wake.Equal(own.wake) {
		if own.unwake != nil {
			own.unwake()
		}
		own.wake, own.unwake = out.Wake, nil
		if !out.Wake.IsZero() {
			own.unwake = w.after(out.Wake.Sub(in.Now), func() {
				own.wake = time.Time{}
				own.step()
			})
		}
	}
	if out.Life == podlife.Finished {
		own.die()
		w.agent.owners = slices.DeleteFunc(w.agent.owners, func(o *owner) bool { return o == own })
		w.logf("%s is finished", own.pod.Name)
	}
}

// publish stores the newest status, one write at a time.
func (own *owner) publish(st corev1.PodStatus) {
	if own.gone || sameStatus(&st, &own.published) {
		return
	}
	own.published, own.wanted = st, &st
	own.write()
}

func (own *owner) write() {
	w := own.w
	if own.writing || own.wanted == nil {
		return
	}
	own.writing = true
	w.after(time.Millisecond+w.upTo(20*time.Millisecond), func() {
		own.writing = false
		if own.dead || !own.object.exists || own.wanted == nil {
			return
		}
		if away := w.apiUp.Sub(w.loop.now); away > 0 {
			w.after(away+w.upTo(time.Second), own.write)
			return
		}
		if w.chance(w.fault) { // a conflict
			w.after(w.upTo(3*time.Second), own.write)
			return
		}
		p := own.object.pod.DeepCopy()
		p.Status = *own.wanted
		own.wanted = nil
		w.checkStored(own.object, &p.Status)
		own.object.pod = p
		if own.pod.Generation == p.Generation && reflect.DeepEqual(own.pod.DeletionGracePeriodSeconds, p.DeletionGracePeriodSeconds) {
			own.pod = p
		}
		w.agent.notify(own.object)
	})
}

// look gathers what the runtime has of the pod; false when nothing has changed on the machine.
func (own *owner) look() bool {
	w := own.w
	now := sight{w.runtime.Changes(), w.mounts, own.pod.Generation}
	if now == own.seen && !own.observed.Taken.IsZero() {
		own.observed.Taken = w.now()
		return false
	}
	own.seen = now
	o := podlife.Observed{Taken: w.now(), Volumes: w.volumes[own.pod.UID]}
	sandboxes, containers := w.list(own.pod.UID)
	for _, s := range slices.Backward(sandboxes) {
		st, err := w.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.Id})
		if err != nil {
			continue
		}
		x := podlife.Sandbox{ID: s.Id, Attempt: s.Metadata.Attempt, CreatedAt: time.Unix(0, s.CreatedAt), Ready: s.State == cri.PodSandboxState_SANDBOX_READY,
			HostNetwork: st.Status.GetLinux().GetNamespaces().GetOptions().GetNetwork() == cri.NamespaceMode_NODE}
		if ip := st.Status.Network.Ip; ip != "" {
			x.IPs = []string{ip}
		}
		o.Sandboxes = append(o.Sandboxes, x)
	}
	for _, c := range containers {
		resp, err := w.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
		if err != nil {
			continue
		}
		st := resp.Status
		x := podlife.Container{ID: c.Id, Name: c.Metadata.Name, Attempt: int(c.Metadata.Attempt), SandboxID: c.PodSandboxId,
			CreatedAt: time.Unix(0, c.CreatedAt), ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
			Image: st.Image.Image, ImageRef: st.ImageRef, Hash: st.Annotations["hash"]}
		if st.StartedAt != 0 {
			x.StartedAt = time.Unix(0, st.StartedAt).UTC()
		}
		if st.FinishedAt != 0 {
			x.FinishedAt = time.Unix(0, st.FinishedAt).UTC()
		}
		switch st.State {
		case cri.ContainerState_CONTAINER_CREATED:
			x.State = podlife.ContainerCreated
		case cri.ContainerState_CONTAINER_RUNNING:
			x.State = podlife.ContainerRunning
		case cri.ContainerState_CONTAINER_EXITED:
			x.State = podlife.ContainerExited
		default:
			x.State = podlife.ContainerUnknown
		}
		o.Containers = append(o.Containers, x)
	}
	images := func(list []corev1.Container) {
		for _, c := range list {
			resp, _ := w.runtime.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: c.Image}})
			i := podlife.ImageState{Image: c.Image}
			if resp.Image != nil {
				i.Ref = resp.Image.Id
			}
			o.Images = append(o.Images, i)
		}
	}
	images(own.pod.Spec.InitContainers)
	images(own.pod.Spec.Containers)
	for _, c := range own.pod.Spec.EphemeralContainers {
		images([]corev1.Container{{Image: c.Image}})
	}
	own.observed = o
	return true
}

// sameStatus compares statuses, at once where Step shares what it has not changed.
func sameStatus(a, b *corev1.PodStatus) bool {
	if a.Phase != b.Phase || a.ObservedGeneration != b.ObservedGeneration || !slices.Equal(a.Conditions, b.Conditions) ||
		!sameContainers(a.InitContainerStatuses, b.InitContainerStatuses) || !sameContainers(a.ContainerStatuses, b.ContainerStatuses) {
		return reflect.DeepEqual(a, b)
	}
	x, y := *a, *b
	x.Conditions, x.InitContainerStatuses, x.ContainerStatuses = nil, nil, nil
	y.Conditions, y.InitContainerStatuses, y.ContainerStatuses = nil, nil, nil
	return reflect.DeepEqual(x, y)
}

// sameContainers reports whether no entry is new; an entry that is not shared may still say the same.
func sameContainers(a, b []corev1.ContainerStatus) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.ContainerStatus) bool {
		return x.Name == y.Name && x.State == y.State && x.LastTerminationState == y.LastTerminationState && x.Ready == y.Ready && x.RestartCount == y.RestartCount &&
			x.Image == y.Image && x.ImageID == y.ImageID && x.ContainerID == y.ContainerID && x.Started == y.Started &&
			x.AllocatedResources == nil && y.AllocatedResources == nil && x.Resources == y.Resources &&
			len(x.VolumeMounts) == len(y.VolumeMounts) && x.User == y.User && len(x.AllocatedResourcesStatus) == len(y.AllocatedResourcesStatus) && x.StopSignal == y.StopSignal
	})
}

// list is everything the runtime has of a pod, oldest first.
func (w *world) list(uid types.UID) ([]*cri.PodSandbox, []*cri.Container) {
	mine := map[string]string{uidLabel: string(uid)}
	s, _ := w.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: mine}})
	c, _ := w.runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: mine}})
	return s.GetItems(), c.GetContainers()
}

// roundTrip is a State that was written down and read again.
func roundTrip(s podlife.State) podlife.State {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	var t podlife.State
	if err := json.Unmarshal(b, &t); err != nil {
		panic(err)
	}
	return t
}
