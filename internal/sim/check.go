package sim

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
)

// The invariants: the promises of architecture.md section 4, each with its name.
// Those about time hold only in clean runs, where nothing goes wrong by itself.
const (
	singleInstance  = "single-instance: never two running containers of one name"
	initFirst       = "init-first: no container before the init containers before it are done"
	volumesMounted  = "volumes-mounted: no container before the volumes"
	volumesLast     = "volumes-last: volumes and sandboxes go after the containers"
	preStopFirst    = "pre-stop-first: SIGTERM never before preStop ended or its time is up"
	sidecarsLast    = "sidecars-last: sidecars stop after what they serve, in reverse"
	killedInTime    = "killed-in-time: nothing runs after the grace"
	deletedEnds     = "deleted-ends: a deleted pod always ends"
	phaseLatched    = "phase-latched: a terminal phase is never left"
	countsRise      = "counts-rise: restartCount never falls"
	generationRises = "generation-rises: observedGeneration never falls"
	lifeForward     = "life-forward: Life never goes back"
	waitHasWake     = "wait-has-wake: every wait ends by an action in flight or a Wake"
	wakeAhead       = "wake-ahead: Wake is after now"
	idleIsQuiet     = "idle-is-quiet: a pod that wants nothing has no Wake"
	deterministic   = "deterministic: Step twice is the same, also with a state restored"
	quiescent       = "quiescent: Step again at once decides nothing"
	retryWaits      = "retry-waits: a failed action is not begun again at once"
	oneKey          = "one-key: no action is begun while its key is in flight"
	noStartWhenOver = "no-start-when-over: nothing is started for a pod that ends"
	abortedAtOnce   = "aborted-at-once: what would start something is aborted when the pod ends"
	readyRuns       = "ready-runs: what is ready runs"
	terminalIsStill = "terminal-is-still: no terminal phase while a container runs"
	backoffKept     = "back-off-kept: no restart before its back-off"
	restartedInTime = "restarted-in-time: a container restarts when its back-off is over"
	probedInTime    = "probed-in-time: a probe runs every period"
	livenessKills   = "liveness-kills: failing liveness ends a container"
	nothingLeft     = "nothing-left: what is finished leaves nothing behind"
	deletedIsEnded  = "deleted-is-ended: the object goes after a terminal phase and all cleaning"
	runningIsKept   = "running-is-kept: no running container is removed"
	recovers        = "recovers: when nothing goes wrong any more, every pod comes back"
	noPanic         = "no-panic: nothing panics"
	deadIsCollected = "dead-is-collected: at most one dead instance of a container is kept"
)

func (w *world) broken(invariant, format string, args ...any) {
	panic(&Violation{Options: w.opts, At: w.loop.now.Sub(epoch), Invariant: invariant, Detail: fmt.Sprintf(format, args...)})
}

// truth is what the world knows of one container of a pod.
type truth struct {
	name      string
	running   string // instance
	sick      bool
	sandbox   string // in which it was started or done last
	started   bool   // in that sandbox
	done      bool   // ended with 0 in that sandbox
	attempt   int
	due       time.Time // earliest restart
	exits     int
	delay     time.Duration
	decided   time.Time
	vague     bool      // the model of back-off does not know exactly
	stopping  time.Time // since when; zero: not
	runs      int       // of the liveness probe
	fails     int       // in a row
	lastProbe time.Time
	lastStart time.Time
	lastSeen  time.Time // started, or ended after having run
}

func (t *truth) stops(at time.Time) {
	if t.stopping.IsZero() {
		t.stopping = at
	}
}

func (o *object) container(name string) *truth {
	t := o.truth[name]
	if t == nil {
		t = &truth{name: name}
		o.truth[name] = t
	}
	return t
}

// checkStep checks one call of Step.
func (w *world) checkStep(own *owner, before podlife.State, in podlife.Input, next podlife.State, out *podlife.Output) {
	name := own.pod.Name
	if w.result.Steps%16 == 0 {
		if s, again := podlife.Step(before, in); !reflect.DeepEqual(s, next) || !reflect.DeepEqual(again, *out) {
			w.broken(deterministic, "%s", name)
		}
	}
	if len(out.Begin)+len(out.Cancel)+len(out.Events) > 0 && w.result.Steps%4 == 0 || w.result.Steps%16 == 1 {
		quiet := in
		quiet.Done, quiet.Probes = nil, nil
		if _, again := podlife.Step(next, quiet); len(again.Begin)+len(again.Cancel)+len(again.Events) > 0 {
			w.broken(quiescent, "%s: %v %v %v", name, again.Begin, again.Cancel, again.Events)
		}
	}
	if w.result.Steps%256 == 0 {
		if _, again := podlife.Step(roundTrip(before), in); !reflect.DeepEqual(keys(again), keys(*out)) {
			w.broken(deterministic, "%s: restored: %v, not %v", name, keys(again), keys(*out))
		}
	}
	if !out.Wake.IsZero() && !out.Wake.After(in.Now) {
		w.broken(wakeAhead, "%s: %v", name, out.Wake)
	}
	if order(out.Life) < order(own.stage) {
		w.broken(lifeForward, "%s: %s after %s", name, out.Life, own.stage)
	}
	w.checkStatus(own, in, out)
	if out.Life != podlife.Syncing {
		for _, f := range own.flights {
			switch f.action.(type) {
			case podlife.PrepareVolumes, podlife.CreateSandbox, podlife.PullImage, podlife.StartContainer:
				if !f.done && !slices.Contains(out.Cancel, f.key) {
					w.broken(abortedAtOnce, "%s: %s", name, f.key)
				}
			}
		}
	}
	flying := len(own.flights) + len(out.Begin)
	for _, x := range out.Waits {
		if flying == 0 && out.Wake.IsZero() && x.For != "network" {
			w.broken(waitHasWake, "%s waits for %s %s", name, x.For, x.Object)
		}
	}
	if out.Life == podlife.Syncing && flying == 0 && len(out.Waits) == 0 && !out.Wake.IsZero() && !wantsTime(own.pod) {
		w.broken(idleIsQuiet, "%s wakes at %v for nothing", name, out.Wake)
	}
	if out.Life == podlife.Finished && (len(in.Observed.Sandboxes)+len(in.Observed.Containers) > 0 || in.Observed.Volumes.Present) {
		w.broken(nothingLeft, "%s", name)
	}
	if flying == 0 && len(out.Waits) == 0 && out.Wake.IsZero() {
		w.checkDead(own, in)
	}
}

// checkDead looks for dead instances that nobody is going to remove.
func (w *world) checkDead(own *owner, in podlife.Input) {
	dead := 0
	for i, c := range in.Observed.Containers {
		if c.State == podlife.ContainerExited {
			dead++
			for _, d := range in.Observed.Containers[:i] {
				if d.Name == c.Name && d.State == podlife.ContainerExited {
					w.broken(deadIsCollected, "%s keeps %s and %s", own.pod.Name, d.ID, c.ID)
				}
			}
		}
	}
}

func keys(o podlife.Output) (l []podlife.Key) {
	for _, b := range o.Begin {
		l = append(l, b.Action.Key())
	}
	return append(l, o.Cancel...)
}

func order(l podlife.Life) int {
	switch l {
	case podlife.Terminating:
		return 1
	case podlife.Terminated:
		return 2
	case podlife.Finished:
		return 3
	default:
		return 0
	}
}

func wantsTime(p *corev1.Pod) bool {
	if p.Spec.ActiveDeadlineSeconds != nil {
		return true
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			if c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil {
				return true
			}
		}
	}
	return false
}

func (w *world) checkStatus(own *owner, in podlife.Input, out *podlife.Output) {
	st, old, name := &out.Status, &own.published, own.pod.Name
	if ended(old.Phase) && st.Phase != old.Phase {
		w.broken(phaseLatched, "%s: %s after %s", name, st.Phase, old.Phase)
	}
	if ended(st.Phase) && !ended(old.Phase) {
		for _, c := range in.Observed.Containers {
			if c.State == podlife.ContainerRunning {
				w.broken(terminalIsStill, "%s is %s while %s runs", name, st.Phase, c.ID)
			}
		}
	}
	if st.ObservedGeneration < old.ObservedGeneration {
		w.broken(generationRises, "%s: %d after %d", name, st.ObservedGeneration, old.ObservedGeneration)
	}
	w.checkCounts(name, old, st)
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for _, c := range list {
			runs := c.State.Running != nil
			if c.Ready && !runs && c.State.Terminated == nil || c.Started != nil && *c.Started && !runs {
				w.broken(readyRuns, "%s: %s", name, c.Name)
			}
		}
	}
	for _, c := range st.ContainerStatuses {
		if c.Ready && c.State.Running == nil {
			w.broken(readyRuns, "%s: %s", name, c.Name)
		}
	}
}

func (w *world) checkCounts(name string, old, st *corev1.PodStatus) {
	for _, pair := range [][2][]corev1.ContainerStatus{{old.InitContainerStatuses, st.InitContainerStatuses}, {old.ContainerStatuses, st.ContainerStatuses}} {
		for _, a := range pair[0] {
			for _, b := range pair[1] {
				if a.Name == b.Name && b.RestartCount < a.RestartCount {
					w.broken(countsRise, "%s: %s from %d to %d", name, a.Name, a.RestartCount, b.RestartCount)
				}
			}
		}
	}
}

// checkStored checks a status that reaches the API server, over crashes of the agent.
func (w *world) checkStored(o *object, st *corev1.PodStatus) {
	if ended(o.final) && st.Phase != o.final {
		w.broken(phaseLatched, "%s: %s stored after %s", o.pod.Name, st.Phase, o.final)
	}
	o.final = st.Phase
	w.checkCounts(o.pod.Name, &o.pod.Status, st)
}

// checkDeleted checks the last act of the agent on the object (L7.41).
func (w *world) checkDeleted(o *object) {
	if !ended(o.pod.Status.Phase) || w.volumes[o.pod.UID].Present {
		w.broken(deletedIsEnded, "%s is deleted in phase %s, volumes %v", o.pod.Name, o.pod.Status.Phase, w.volumes[o.pod.UID])
	}
}

// checkBegin checks one action at the time it is begun.
func (w *world) checkBegin(own *owner, a podlife.Action, life podlife.Life) {
	for _, f := range own.flights {
		if f.key == a.Key() {
			w.broken(oneKey, "%s: %s", own.pod.Name, a.Key())
		}
	}
	_, pull := a.(podlife.PullImage) // may follow at once when another container got the image
	for _, f := range own.failures {
		if !pull && f.key == a.Key() && w.loop.now.Sub(f.at) < time.Second {
			w.broken(retryWaits, "%s: %s failed %v ago", own.pod.Name, f.key, w.loop.now.Sub(f.at))
		}
	}
	switch a := a.(type) {
	case podlife.CreateSandbox, podlife.StartContainer, podlife.PullImage, podlife.PrepareVolumes:
		if life != podlife.Syncing {
			w.broken(noStartWhenOver, "%s: %s while %s", own.pod.Name, a.Key(), life)
		}
	case podlife.RunHook:
		if a.Kind == podlife.PreStop {
			own.object.container(a.Container).stops(w.loop.now)
		}
	case podlife.StopContainer:
		w.checkStop(own, a, life)
	}
}

func (w *world) checkStop(own *owner, a podlife.StopContainer, life podlife.Life) {
	t := own.object.container(a.Container)
	t.stops(w.loop.now)
	c, index, init := containerOf(own.pod, a.Container)
	if c == nil || t.running != a.ContainerID {
		return
	}
	over := !own.ending.IsZero() && !w.loop.now.Before(own.ending.Add(own.object.grace))
	noGrace := life == podlife.Syncing && (tgps(own.pod) == 0 || own.state.RestartAll.Active) // no hook then (L6.5)
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && !over && !noGrace {
		ok := false
		for _, h := range own.hooks {
			if h.id == a.ContainerID && (h.ended || !w.loop.now.Before(h.until)) {
				ok = true
			}
		}
		if !ok {
			w.broken(preStopFirst, "%s: %s", own.pod.Name, a.ContainerID)
		}
	}
	if life != podlife.Terminating || !init || !strings.HasPrefix(c.Name, "side") || over || t.stopping.Before(own.ending) {
		return
	}
	served := func(list []corev1.Container) {
		for _, s := range list {
			if x := own.object.truth[s.Name]; x != nil && x.running != "" && !strings.HasPrefix(s.Name, "init") && w.seen(own, x.running) {
				w.broken(sidecarsLast, "%s: %s is stopped while %s runs", own.pod.Name, c.Name, s.Name)
			}
		}
	}
	served(own.pod.Spec.Containers)
	served(own.pod.Spec.InitContainers[index+1:])
}

// seen tells whether the agent knows an instance to run.
func (w *world) seen(own *owner, id string) bool {
	for _, c := range own.observed.Containers {
		if c.ID == id {
			return c.State == podlife.ContainerRunning
		}
	}
	return false
}

// checkStart checks a start when it takes effect.
func (w *world) checkStart(own *owner, a podlife.StartContainer) {
	o := own.object
	sandboxes, containers := w.list(own.pod.UID)
	for _, c := range containers {
		if c.Metadata.Name == a.Container && c.State == cri.ContainerState_CONTAINER_RUNNING && c.PodSandboxId == a.SandboxID && int(c.Metadata.Attempt) != a.Attempt {
			w.broken(singleInstance, "%s: %s runs, attempt %d is started", own.pod.Name, c.Id, a.Attempt)
		}
	}
	ready := false
	for _, s := range sandboxes {
		ready = ready || s.Id == a.SandboxID && s.State == cri.PodSandboxState_SANDBOX_READY
	}
	if !ready || own.dead {
		return // the runtime refuses; or it is a call of a crashed agent
	}
	if !w.volumes[own.pod.UID].Mounted {
		w.broken(volumesMounted, "%s: %s", own.pod.Name, a.Container)
	}
	c, index, init := containerOf(own.pod, a.Container)
	if c == nil {
		return // ephemeral containers wait for nobody
	}
	if !init {
		index = len(own.pod.Spec.InitContainers)
	}
	for _, c := range own.pod.Spec.InitContainers[:index] {
		t := o.container(c.Name)
		if t.sandbox != a.SandboxID || strings.HasPrefix(c.Name, "init") && !t.done || !t.started {
			w.broken(initFirst, "%s: %s starts before %s is done", own.pod.Name, a.Container, c.Name)
		}
	}
	t := o.container(a.Container)
	if w.clean && !o.upset && !o.updated && !t.vague && t.exits > 0 && w.loop.now.Before(t.due) {
		w.broken(backoffKept, "%s: %s is restarted %v early", own.pod.Name, a.Container, t.due.Sub(w.loop.now))
	}
}

// containerStarts notes a start.
func (w *world) containerStarts(own *owner, a podlife.StartContainer, id string) {
	o := own.object
	t := o.container(a.Container)
	if t.sandbox != a.SandboxID {
		t.done = false
	}
	t.running, t.sandbox, t.started, t.attempt, t.stopping = id, a.SandboxID, true, a.Attempt, time.Time{}
	t.lastStart, t.lastSeen = w.loop.now, w.loop.now
	t.sick, t.runs, t.fails = w.chance(0.15), 0, 0
	c, _, _ := containerOf(own.pod, a.Container)
	if c == nil {
		return // ephemeral
	}
	if p := c.LivenessProbe; p != nil && w.clean && c.StartupProbe == nil && c.Lifecycle == nil && !o.updated {
		period, delay := time.Duration(p.PeriodSeconds)*time.Second, time.Duration(p.InitialDelaySeconds)*time.Second
		w.after(delay+time.Minute, func() {
			if t.running == id && t.stopping.IsZero() && o.asked.IsZero() && t.runs < int(time.Minute/period)-2 {
				w.broken(probedInTime, "%s: %s was probed %d times in a minute", o.pod.Name, id, t.runs)
			}
		})
	}
}

// containerEnded notes an exit, with the model of the crash back-off.
func (w *world) containerEnded(id string) {
	for _, o := range w.pods {
		for _, list := range [][]corev1.Container{o.pod.Spec.InitContainers, o.pod.Spec.Containers} {
			for _, c := range list {
				if t := o.truth[c.Name]; t != nil && t.running == id {
					w.ended(o, &c, t)
				}
			}
		}
	}
}

func (w *world) ended(o *object, c *corev1.Container, t *truth) {
	now := w.loop.now
	st, err := w.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: t.running})
	t.done = err == nil && st.Status.ExitCode == 0
	code := int32(-1)
	if err == nil {
		code = st.Status.ExitCode
	}
	w.logf("%s %s (%s) ends with %d", o.pod.Name, c.Name, t.running, code)
	t.running, t.lastSeen = "", now
	t.exits++
	wait := t.delay
	const reset = 600 * time.Second
	if since := now.Sub(t.decided); t.delay > 0 && since > reset-time.Second && since < reset+time.Second {
		t.vague = true // too near to the edge to know
	} else if since > reset {
		wait = 0
	}
	t.due = now.Add(wait)
	t.decided = t.due
	t.delay = max(10*time.Second, min(2*wait, 300*time.Second))
	if !w.clean || o.upset || o.updated || strings.HasPrefix(c.Name, "init") ||
		o.pod.Spec.RestartPolicy != corev1.RestartPolicyAlways && !strings.HasPrefix(c.Name, "side") {
		return
	}
	exits := t.exits
	w.after(wait+40*time.Second, func() {
		own := w.agent.find(o)
		if own != nil && own.stage == podlife.Syncing && !o.updated && t.exits == exits && t.running == "" {
			w.broken(restartedInTime, "%s: %s ended 40 s and its back-off of %v ago", o.pod.Name, c.Name, wait)
		}
	})
}

// probed notes a run of a probe.
func (w *world) probed(o *object, t *truth, a podlife.RunProbe, v podlife.ProbeVerdict) {
	t.lastProbe = w.loop.now
	if a.Type != podlife.Liveness {
		return
	}
	t.runs++
	switch v {
	case podlife.ProbeSuccess, podlife.ProbeWarning: // a warning is a success (L5.22)
		t.fails = 0
	case podlife.ProbeFailure:
		t.fails++
	case podlife.ProbeError: // counts for neither
	}
	if t.fails != int(a.Probe.FailureThreshold) || !w.clean {
		return
	}
	w.after(5*time.Second, func() {
		if t.running == a.ContainerID && t.stopping.IsZero() && o.asked.IsZero() {
			w.broken(livenessKills, "%s: %s failed %d times and goes on", o.pod.Name, a.ContainerID, t.fails)
		}
	})
}

// checkKilledInTime begins to watch a pod whose end was asked for.
func (w *world) checkKilledInTime(o *object) {
	if !w.clean || o.asked.IsZero() {
		return
	}
	left := o.asked.Add(max(o.grace, 2*time.Second) + 10*time.Second).Sub(w.loop.now)
	w.after(max(left, 10*time.Second), func() {
		w.checkNothing(o, killedInTime, "its grace is over")
	})
	w.after(max(left, 10*time.Second)+30*time.Second, func() {
		if o.exists && o.pod.DeletionTimestamp != nil {
			w.broken(deletedEnds, "%s was deleted at +%v with %v", o.pod.Name, o.asked.Sub(epoch), o.grace)
		}
	})
}

func (w *world) checkNothing(o *object, invariant, when string) {
	_, containers := w.list(o.pod.UID)
	for _, c := range containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING {
			w.broken(invariant, "%s: %s runs while %s", o.pod.Name, c.Id, when)
		}
	}
}

// checkNothingRuns checks that teardown comes after the containers. A late call
// of a crashed agent may start a container again; that is not Step's doing.
func (w *world) checkNothingRuns(o *object, when string) {
	if w.result.Crashes == 0 {
		w.checkNothing(o, volumesLast, when)
	}
}

func (w *world) checkNotRunning(o *object, id string) {
	_, containers := w.list(o.pod.UID)
	for _, c := range containers {
		if c.Id == id && c.State == cri.ContainerState_CONTAINER_RUNNING {
			w.broken(runningIsKept, "%s: %s", o.pod.Name, id)
		}
	}
}

// checkEnd checks that everything is gone when all was deleted and time has passed.
func (w *world) checkEnd() {
	for _, o := range w.pods {
		s, c := w.list(o.pod.UID)
		if o.exists {
			w.broken(deletedEnds, "%s is still there, phase %s", o.pod.Name, o.pod.Status.Phase)
		}
		if len(s)+len(c) > 0 || w.volumes[o.pod.UID].Present {
			w.broken(nothingLeft, "%s: %d sandboxes, %d containers, volumes %v", o.pod.Name, len(s), len(c), w.volumes[o.pod.UID])
		}
		if own := w.agent.find(o); own != nil {
			w.broken(nothingLeft, "%s is still driven: %s, in flight %d", o.pod.Name, own.stage, len(own.flights))
		}
	}
}
