package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
)

// turn is Step, or a broken version of it.
type turn func(*owner, podlife.State, podlife.Input) (podlife.State, podlife.Output)

func plain(_ *owner, s podlife.State, in podlife.Input) (podlife.State, podlife.Output) {
	return podlife.Step(s, in)
}

// sabotage makes Step break the invariant of this name; the run checks no other one.
func (w *world) sabotage(name string) error {
	for i := range Invariants {
		if Invariants[i].Name != name {
			continue
		}
		w.only = &Invariants[i]
		if name == noPanic.Name {
			w.turn = func(*owner, podlife.State, podlife.Input) (podlife.State, podlife.Output) { panic("on purpose") }
			return nil
		}
		if name == deadlineKept.Name {
			w.turn = withoutDeadline
			return nil
		}
		bad := saboteurs[name]
		if bad == nil {
			return fmt.Errorf("there is no way to break %s", name)
		}
		w.turn = func(own *owner, s podlife.State, in podlife.Input) (podlife.State, podlife.Output) {
			next, out := podlife.Step(s, in)
			bad(&breach{own: own, w: w, in: in, out: &out})
			return next, out
		}
		return nil
	}
	return fmt.Errorf("there is no invariant %q; carob sim --invariants lists them", name)
}

func withoutDeadline(_ *owner, s podlife.State, in podlife.Input) (podlife.State, podlife.Output) {
	p := in.Pod.DeepCopy()
	p.Spec.ActiveDeadlineSeconds = nil
	in.Pod = p
	return podlife.Step(s, in)
}

// breach is one call of Step with a changed output.
type breach struct {
	own *owner
	w   *world
	in  podlife.Input
	out *podlife.Output
}

// drop removes actions of a kind from the output: Step waits for them without end.
func drop[A podlife.Action](b *breach, which func(A) bool) {
	b.out.Begin = slices.DeleteFunc(b.out.Begin, func(x podlife.Begin) bool {
		a, ok := x.Action.(A)
		return ok && (which == nil || which(a))
	})
}

// begin adds an action that Step did not begin; not too often, because its end causes another Step.
func (b *breach) begin(a podlife.Action) {
	now := b.w.loop.now
	if now.Before(b.w.nextWhim) && !now.Equal(b.w.lastWhim) {
		return
	}
	b.w.lastWhim, b.w.nextWhim = now, now.Add(10*time.Second)
	b.out.Begin = append(b.out.Begin, podlife.Begin{Action: a, Cause: "on purpose"})
}

// running returns a running container whose name begins with prefix.
func (b *breach) running(prefix string) *podlife.Container {
	for i := range b.in.Observed.Containers {
		if c := &b.in.Observed.Containers[i]; c.State == podlife.ContainerRunning && strings.HasPrefix(c.Name, prefix) {
			return c
		}
	}
	return nil
}

// exited returns an exited container whose name no other instance has.
func (b *breach) exited(prefix string, ok func(*podlife.Container) bool) *podlife.Container {
	for i := range b.in.Observed.Containers {
		if c := &b.in.Observed.Containers[i]; c.State == podlife.ContainerExited && strings.HasPrefix(c.Name, prefix) &&
			(ok == nil || ok(c)) {
			return c
		}
	}
	return nil
}

// start begins an attempt of a container whose number Step never uses.
func (b *breach) start(name string) {
	if len(b.in.Observed.Sandboxes) > 0 && b.out.Life == podlife.Syncing {
		b.begin(podlife.StartContainer{Container: name, Attempt: 1000 + b.w.result.Steps,
			SandboxID: b.in.Observed.Sandboxes[0].ID, ImageRef: "sha256:image0"})
	}
}

func (b *breach) is(l podlife.Life) bool { return b.out.Life == l }

func (b *breach) condition(t corev1.PodConditionType, change func(*corev1.PodCondition)) {
	b.out.Status.Conditions = slices.Clone(b.out.Status.Conditions)
	if c := podstatus.Condition(b.out.Status.Conditions, t); c != nil {
		change(c)
	}
}

// saboteurs break one invariant each, as a bug in Step would. "carob sim --break" and the tests of
// the invariants use them.
var saboteurs = map[string]func(*breach){
	singleInstance.Name: func(b *breach) {
		if c := b.running("app"); c != nil {
			b.start(c.Name)
		}
	},
	initFirst.Name: func(b *breach) { b.start("app0") },
	initOnce.Name: func(b *breach) {
		if c := b.exited("init", func(c *podlife.Container) bool { return c.ExitCode == 0 }); c != nil {
			b.start(c.Name)
		}
	},
	postStartFirst.Name: func(b *breach) {
		for _, f := range b.own.flights {
			if h, ok := f.action.(podlife.RunHook); ok && h.Kind == podlife.PostStart && h.Container == "app0" &&
				len(b.in.Pod.Spec.Containers) > 1 {
				b.start("app1")
			}
		}
	},
	volumesMounted.Name: func(b *breach) {
		if !b.in.Observed.Volumes.Mounted {
			b.start("app0")
		}
	},
	pullPolicyKept.Name: func(b *breach) {
		for _, c := range b.in.Pod.Spec.Containers {
			if c.ImagePullPolicy == corev1.PullNever {
				b.begin(podlife.PullImage{Container: c.Name, Image: c.Image})
			}
		}
	},
	policyKept.Name: func(b *breach) {
		if c := b.exited("app", nil); c != nil && b.in.Pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
			b.start(c.Name)
		}
	},
	ephemeralOnce.Name: func(b *breach) {
		if c := b.exited("debug", nil); c != nil {
			b.start(c.Name)
		}
	},
	backoffKept.Name: func(b *breach) {
		for _, x := range b.out.Waits {
			if x.For == "back-off" {
				b.start(x.Object)
			}
		}
	},
	restartedInTime.Name: func(b *breach) {
		drop(b, func(a podlife.StartContainer) bool { return a.Attempt > 0 })
	},
	retryWaits.Name: func(b *breach) {
		for _, o := range b.in.Done {
			if o.Err != nil && o.Err.Reason != podlife.Aborted && o.Key == (podlife.PrepareVolumes{}).Key() &&
				b.is(podlife.Syncing) {
				b.begin(podlife.PrepareVolumes{})
			}
		}
	},
	probedInTime.Name:  func(b *breach) { drop[podlife.RunProbe](b, nil) },
	livenessKills.Name: func(b *breach) { drop[podlife.StopContainer](b, nil); drop[podlife.RunHook](b, nil) },
	trafficFirst.Name: func(b *breach) {
		if c := b.running("app"); c != nil && slices.ContainsFunc(b.out.Waits,
			func(x podlife.Wait) bool { return x.For == "traffic" }) {
			b.begin(podlife.StopContainer{Container: c.Name, ContainerID: c.ID, Grace: 2 * time.Second})
		}
	},
	preStopFirst.Name: func(b *breach) {
		for i, x := range b.out.Begin {
			if h, ok := x.Action.(podlife.RunHook); ok && h.Kind == podlife.PreStop {
				b.out.Begin[i].Action = podlife.StopContainer{Container: h.Container, ContainerID: h.ContainerID,
					Grace: 2 * time.Second}
			}
		}
	},
	preStopOnce.Name: func(b *breach) {
		for _, h := range b.own.hooks {
			if c := b.running(""); c != nil && c.ID == h.id {
				b.begin(podlife.RunHook{Container: c.Name, ContainerID: c.ID, Kind: podlife.PreStop,
					Timeout: time.Second})
			}
		}
	},
	sidecarsLast.Name: func(b *breach) {
		if c := b.running("side"); c != nil && b.running("app") != nil && b.is(podlife.Terminating) {
			b.begin(podlife.StopContainer{Container: c.Name, ContainerID: c.ID, Grace: 2 * time.Second})
		}
	},
	leastGrace.Name: func(b *breach) {
		for i, x := range b.out.Begin {
			if s, ok := x.Action.(podlife.StopContainer); ok {
				s.Grace = time.Second
				b.out.Begin[i].Action = s
			}
		}
	},
	graceKept.Name: func(b *breach) {
		for i, x := range b.out.Begin {
			if s, ok := x.Action.(podlife.StopContainer); ok {
				s.Grace = 10 * time.Minute
				b.out.Begin[i].Action = s
			}
		}
	},
	killedInTime.Name: func(b *breach) { drop[podlife.StopContainer](b, nil) },
	noStartWhenOver.Name: func(b *breach) {
		if b.is(podlife.Terminating) {
			b.begin(podlife.CreateSandbox{Attempt: 99})
		}
	},
	abortedAtOnce.Name: func(b *breach) { b.out.Cancel = nil },
	volumesLast.Name: func(b *breach) {
		if b.running("") != nil {
			b.begin(podlife.RemoveVolumes{})
		}
	},
	runningIsKept.Name: func(b *breach) {
		if c := b.running(""); c != nil {
			b.begin(podlife.RemoveContainer{Container: c.Name, ContainerID: c.ID})
		}
	},
	deadIsCollected.Name: func(b *breach) { drop[podlife.RemoveContainer](b, nil) },
	deletedIsEnded.Name: func(b *breach) {
		if b.in.Pod.DeletionTimestamp != nil {
			b.begin(podlife.DeletePod{})
		}
	},
	deletedEnds.Name: func(b *breach) { drop[podlife.DeletePod](b, nil) },
	stoppedEnds.Name: func(b *breach) {
		if b.in.Stop != nil {
			b.out.Status.Phase = b.own.last.Phase
		}
	},
	stopKept.Name: func(b *breach) { b.out.Status.Reason = "" },
	rejectedIsOver.Name: func(b *breach) {
		if b.in.Reject != nil {
			b.begin(podlife.PrepareVolumes{})
		}
	},
	nothingLeft.Name: func(b *breach) {
		if b.is(podlife.Terminated) {
			b.out.Life = podlife.Finished
		}
	},
	phaseLatched.Name: func(b *breach) {
		if podstatus.Terminal(b.own.last.Phase) {
			b.out.Status.Phase = corev1.PodRunning
		}
	},
	terminalIsStill.Name: func(b *breach) {
		if b.running("") != nil && b.is(podlife.Terminating) {
			b.out.Status.Phase = corev1.PodFailed
		}
	},
	succeededMeans.Name: func(b *breach) {
		if b.out.Status.Phase == corev1.PodFailed {
			b.out.Status.Phase = corev1.PodSucceeded
		}
	},
	staticLives.Name: func(b *breach) {
		if b.own.object.static && b.running("") == nil && !b.is(podlife.Syncing) {
			b.out.Status.Phase = corev1.PodFailed
		}
	},
	countsRise.Name: func(b *breach) {
		b.out.Status.ContainerStatuses = slices.Clone(b.out.Status.ContainerStatuses)
		for i := range b.out.Status.ContainerStatuses {
			b.out.Status.ContainerStatuses[i].RestartCount %= 2
		}
	},
	countsGoOn.Name: func(b *breach) {
		for i, x := range b.out.Begin {
			if s, ok := x.Action.(podlife.StartContainer); ok && len(b.own.logs) > 0 {
				s.Attempt = 0
				b.out.Begin[i].Action = s
			}
		}
	},
	imageUsed.Name: func(b *breach) { b.out.Look = time.Time{} },
	heldWaits.Name: func(b *breach) {
		if b.own.hold != nil && b.is(podlife.Syncing) {
			b.begin(podlife.PrepareVolumes{})
		}
	},
	statusAllowed.Name: func(b *breach) { // as between creation and start
		b.out.Status.ContainerStatuses = slices.Clone(b.out.Status.ContainerStatuses)
		for i := range b.out.Status.ContainerStatuses {
			if w := b.out.Status.ContainerStatuses[i].State.Waiting; w != nil {
				b.out.Status.ContainerStatuses[i].State.Waiting = &corev1.ContainerStateWaiting{}
			}
		}
	},
	changeAllowed.Name: func(b *breach) { // without its exit
		b.out.Status.ContainerStatuses = slices.Clone(b.out.Status.ContainerStatuses)
		for i := range b.out.Status.ContainerStatuses {
			b.out.Status.ContainerStatuses[i].LastTerminationState = corev1.ContainerState{}
		}
	},
	generationRises.Name: func(b *breach) { b.out.Status.ObservedGeneration = -b.out.Status.ObservedGeneration },
	readyRuns.Name: func(b *breach) {
		b.out.Status.ContainerStatuses = slices.Clone(b.out.Status.ContainerStatuses)
		b.out.Status.ContainerStatuses[0].Ready = true
	},
	readyMeans.Name: func(b *breach) {
		b.condition(corev1.PodReady, func(c *corev1.PodCondition) { c.Status = corev1.ConditionTrue })
	},
	endedNotReady.Name: func(b *breach) {
		b.condition(corev1.PodReady, func(c *corev1.PodCondition) { c.Status = corev1.ConditionTrue })
	},
	othersKept.Name: func(b *breach) {
		b.out.Status.Conditions = slices.DeleteFunc(slices.Clone(b.out.Status.Conditions),
			func(c corev1.PodCondition) bool { return c.Type == gateType })
	},
	conditionTime.Name: func(b *breach) {
		b.condition(corev1.PodReady, func(c *corev1.PodCondition) { c.LastTransitionTime = metav1.NewTime(b.in.Now) })
	},
	startTimeFixed.Name: func(b *breach) {
		now := metav1.NewTime(b.in.Now)
		b.out.Status.StartTime = &now
	},
	addressesKept.Name: func(b *breach) {
		if b.is(podlife.Terminated) {
			b.out.Status.PodIPs = nil
		}
	},
	resizeGranted.Name: func(b *breach) {
		if c := b.running("app0"); c != nil && b.out.Allocated != b.in.Pod {
			spec, _, _ := containerOf(b.in.Pod, c.Name)
			b.begin(podlife.Resize{Container: c.Name, ContainerID: c.ID, Resources: spec.Resources})
		}
	},
	groupFirst.Name: func(b *breach) {
		for i, x := range b.out.Begin {
			if r, ok := x.Action.(podlife.ResizePod); ok && r.Widen {
				g := b.w.groups[b.own.pod.UID]
				for _, c := range b.in.Observed.Containers {
					spec, _, _ := containerOf(b.out.Allocated, c.Name)
					if spec == nil || c.State != podlife.ContainerRunning {
						continue
					}
					limits := spec.Resources.Limits // of a container that must wait for its pod
					if g.memory > 0 && limits.Memory().Value() > g.memory || g.cpu > 0 &&
						limits.Cpu().MilliValue()*100 > g.cpu {
						b.out.Begin[i].Action = podlife.Resize{Container: c.Name, ContainerID: c.ID,
							Resources: spec.Resources}
					}
				}
			}
		}
	},
	resizeEnds.Name: func(b *breach) { drop[podlife.AdmitResize](b, nil) },
	resizeOver.Name: func(b *breach) {
		b.out.Status.Conditions = append(slices.Clone(b.out.Status.Conditions),
			corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue})
	},
	resetEnds.Name: func(b *breach) {
		if podstatus.Condition(b.out.Status.Conditions, corev1.AllContainersRestarting) != nil {
			drop[podlife.RemoveContainer](b, nil)
		}
	},
	lifeForward.Name: func(b *breach) {
		if b.own.stage == podlife.Terminating {
			b.out.Life = podlife.Syncing
		}
	},
	waitHasWake.Name: func(b *breach) { b.out.Wake = time.Time{} },
	neverSilent.Name: func(b *breach) { b.out.Waits = nil },
	wakeAhead.Name:   func(b *breach) { b.out.Wake = b.in.Now },
	idleIsQuiet.Name: func(b *breach) { b.out.Wake = b.in.Now.Add(time.Minute) },
	deterministic.Name: func(b *breach) {
		b.w.whims++
		b.out.Wake = b.in.Now.Add(time.Duration(b.w.whims) * time.Second)
	},
	quiescent.Name: func(b *breach) {
		b.out.Events = append(b.out.Events, podlife.Event{Type: corev1.EventTypeNormal, Reason: "Again"})
	},
	oneKey.Name: func(b *breach) {
		for _, f := range b.own.flights {
			b.begin(f.action)
			return
		}
	},
	recovers.Name: func(b *breach) {
		if b.w.faultsEnded {
			b.out.Waits = nil
			drop[podlife.StartContainer](b, nil)
		}
	},
	statusTrue.Name: func(b *breach) {
		if b.w.faultsEnded {
			b.out.Status = b.own.last
		}
	},
	oneSandbox.Name: func(b *breach) {
		if b.w.faultsEnded && b.is(podlife.Syncing) {
			drop[podlife.StopSandbox](b, nil)
			b.begin(podlife.CreateSandbox{Attempt: uint32(1000 + b.w.result.Steps)})
		}
	},
}
