package sim

import (
	"encoding/json"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
)

// owner is the driver of one pod.
type owner struct {
	w            *world
	object       *object
	life         int // number of the agent
	dead         bool
	pod          *corev1.Pod
	number       int  // version of the pod
	gone, unseen bool // unseen: found only in the runtime, so that its status is not published
	rejected     *podlife.Rejection
	stop         *podlife.Stop
	stopped      bool        // why the pod must end
	started      bool        // Recover was called
	runs         *corev1.Pod // with its allocated resources
	state        podlife.State
	stage        podlife.Life
	stale        bool // the snapshot is older than an outcome
	observed     podlife.Observed
	cache        statusCache
	logs         []podlife.LogFile // present in the first snapshot
	hold         *podlife.Hold
	turn         int // when it began to wait for resources
	seen         sight
	gap          bool      // the snapshot lacks something that this agent has never seen
	lookAt       time.Time // when the snapshot becomes too old
	made         []string  // number of containers started by this agent
	done         []podlife.Outcome
	probes       []podlife.ProbeResult
	flights      []*flight
	failures     []failed
	waits        []podlife.Wait
	wake         time.Time
	unwake       func()
	unsoon       func()

	wanted    *corev1.PodStatus // the newest status is not stored yet
	writing   bool
	published corev1.PodStatus
	last      corev1.PodStatus // of the last Step, which publishes nothing for a deleted pod
	ending    time.Time        // when Step of this agent first ended the pod
	hooks     []hook
}

func (own *owner) die() {
	own.dead = true
	if own.unwake != nil {
		own.unwake()
	}
	if own.unsoon != nil {
		own.unsoon()
	}
}

// soon calls step after everything else at this point in time.
func (own *owner) soon() { own.stepAfter(0) }

func (own *owner) stepAfter(d time.Duration) {
	if own.unsoon == nil {
		own.unsoon = own.w.after(d, func() {
			own.unsoon = nil
			own.step()
		})
	}
}

// refresh takes a snapshot of the runtime and calls step if it has changed.
func (own *owner) refresh() {
	if own.dead {
		return
	}
	if own.w.silentFor() > 0 {
		own.stale = true
		own.step()
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

// ready updates the snapshot. It returns false while the runtime does not answer.
func (own *owner) ready() bool {
	if !own.stale {
		return true
	}
	if silent := own.w.silentFor(); silent > 0 {
		own.stepAfter(silent + own.w.upTo(10*time.Second))
		return false
	}
	own.look()
	own.stale = false
	return true
}

// step calls Step once, like a driver.
func (own *owner) step() {
	w := own.w
	if !own.lookAt.IsZero() && !w.now().Before(own.lookAt) {
		own.stale = true
	}
	if own.dead || !own.ready() {
		return
	}
	if !own.started {
		admitted := *own.runs // as it was taken over
		admitted.Status = own.pod.Status
		own.state, own.started = podlife.Recover(&admitted, own.observed), true
	}
	in := podlife.Input{
		Now: w.now(), Pod: own.pod, Gone: own.gone, Hold: own.hold, Stop: own.stop, Reject: own.rejected,
		Node: w.facts(), Routed: own.object.routed,
		Observed: own.observed, Probes: own.probes, Done: own.done,
	}
	before := own.state
	next, out := w.turn(own, before, in)
	w.result.Steps++
	w.checkStep(own, before, in, next, &out)
	own.state, own.stage, own.waits = next, out.Life, out.Waits
	own.done, own.probes = nil, nil
	if own.runs = out.Allocated; own.runs == nil {
		own.runs = own.pod
	}
	if own.ending.IsZero() && out.Life != podlife.Syncing {
		own.ending = w.loop.now
		if own.object.requested.IsZero() {
			own.object.requestDeletion(w.loop.now, tgps(own.pod))
		}
	}
	room := podstatus.Terminal(out.Status.Phase) && !podstatus.Terminal(own.published.Phase) ||
		podstatus.Condition(own.published.Conditions, corev1.PodResizeInProgress) != nil &&
			podstatus.Condition(out.Status.Conditions, corev1.PodResizeInProgress) == nil
	own.last = out.Status
	own.publish(&out.Status)
	if room {
		w.agent.vacate()
	}
	for _, k := range out.Cancel {
		own.cancel(k)
	}
	for _, b := range out.Begin {
		key := b.Action.Key()
		w.logf("%s begin %s: %s", own.pod.Name, key, b.Cause)
		w.result.Actions++
		w.checkBegin(own, key, b.Action, out.Life)
		own.begin(key, b.Action)
	}
	for _, e := range out.Events {
		w.logf("%s event %s %s", own.pod.Name, e.Reason, e.Message)
	}
	own.lookAt = out.Look
	wake := out.Wake
	if wake.IsZero() || !out.Look.IsZero() && out.Look.Before(wake) {
		wake = out.Look
	}
	own.wakeAt(wake, in.Now)
	if out.Life == podlife.Finished {
		own.die()
		w.agent.owners = slices.DeleteFunc(w.agent.owners, func(o *owner) bool { return o == own })
		w.logf("%s is finished", own.pod.Name)
		w.agent.vacate()
	}
}

// wakeAt sets the timer like a driver: by the monotonic clock where possible.
func (own *owner) wakeAt(at, now time.Time) {
	if at.Equal(own.wake) && !at.IsZero() {
		return
	}
	if own.unwake != nil {
		own.unwake()
	}
	own.wake, own.unwake = at, nil
	if !at.IsZero() {
		own.unwake = own.w.after(max(at.Sub(now), time.Millisecond), func() {
			own.wake = time.Time{}
			own.step()
		})
	}
}

func (own *owner) waitsFor(what string) bool {
	return slices.ContainsFunc(own.waits, func(x podlife.Wait) bool { return x.For == what })
}

// publish stores the newest status, one write at a time. The status of a static pod goes to its
// mirror pod, which the agent does not watch.
func (own *owner) publish(st *corev1.PodStatus) {
	if own.gone {
		return
	}
	same := podstatus.Equal(st, &own.published)
	own.published = *st // also an equal one: the next one shares parts with it
	if same {
		return
	}
	if own.object.static {
		own.w.checkStored(own.object, st)
		return
	}
	wanted := *st
	own.wanted = &wanted
	own.write()
}

// inCluster handles a version of the pod that controllers may have changed.
func (own *owner) inCluster() {
	if own.gone || !needsRoom(own.pod) {
		own.hold = nil // it no longer has to wait for resources
	}
	// The node lifecycle controller marked it (L7.161): the agent publishes the actual status again.
	theirs := podstatus.Condition(own.pod.Status.Conditions, corev1.PodReady)
	mine := podstatus.Condition(own.published.Conditions, corev1.PodReady)
	if !own.gone && own.wanted == nil && theirs != nil && mine != nil && theirs.Status != mine.Status {
		wanted := own.published
		own.wanted = &wanted
		own.write()
	}
}

// write sends the newest status to the API server. The write may fail, or succeed while the response is lost.
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
		if away := w.away(); away > 0 {
			w.after(away+w.upTo(time.Second), own.write)
			return
		}
		if w.chance(w.fault) { // a conflict
			w.after(w.upTo(3*time.Second), own.write)
			return
		}
		w.storeStatus(own.object, own.wanted)
		if w.chance(w.fault / 2) { // the response is lost
			w.after(w.upTo(3*time.Second), own.write)
			return
		}
		own.wanted = nil
	})
}

// roundTrip serializes a State and reads it again.
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
