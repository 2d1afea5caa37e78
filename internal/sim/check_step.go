package sim

import (
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
)

// checkStep checks one call of Step.
func (w *world) checkStep(own *owner, before podlife.State, in podlife.Input, next podlife.State, out *podlife.Output) {
	name := own.pod.Name
	decides, n := decides(out), w.result.Steps
	if decides {
		w.decisions++
	}
	if decides || n%32 == 0 {
		if s, again := w.turn(own, before, in); !sameTurn(s, next, again, *out) {
			w.broken(deterministic, name, "twice: %v, then %v", keys(*out), keys(again))
		}
	}
	if decides || n%16 == 1 {
		quiet := in
		quiet.Done, quiet.Probes = nil, nil
		if _, again := w.turn(own, next, quiet); len(again.Begin)+len(again.Cancel)+len(again.Events) > 0 {
			w.broken(quiescent, name, "begins %v, cancels %v, reports %v", again.Begin, again.Cancel, again.Events)
		}
	}
	if (decides && w.decisions%8 == 0 || n%512 == 0) && w.skew == 0 && w.slept == 0 {
		// a serialized time has no monotonic reading
		if _, again := w.turn(own, roundTrip(before), in); !reflect.DeepEqual(keys(again), keys(*out)) {
			w.broken(deterministic, name, "restored: %v, not %v", keys(again), keys(*out))
		}
	}
	if !out.Wake.IsZero() && !out.Wake.After(in.Now) {
		w.broken(wakeAhead, name, "wakes at %v, now is %v", out.Wake, in.Now)
	}
	if order(out.Life) < order(own.stage) {
		w.broken(lifeForward, name, "%s after %s", out.Life, own.stage)
	}
	if !own.unseen {
		w.checkStatus(own, in, out)
	}
	if out.Life != podlife.Syncing {
		for _, f := range own.flights {
			switch f.action.(type) {
			case podlife.PrepareVolumes, podlife.CreateSandbox, podlife.PullImage, podlife.StartContainer,
				podlife.Resize, podlife.ResizePod, podlife.AdmitResize:
				if !f.done && !f.cancelled && !slices.Contains(out.Cancel, f.key) {
					w.broken(abortedAtOnce, name, "%s continues", f.key)
				}
			}
		}
	}
	w.checkWaits(own, in, out)
	if out.Life == podlife.Finished &&
		(len(in.Observed.Sandboxes)+len(in.Observed.Containers) > 0 || in.Observed.Volumes.Present) {
		w.broken(nothingLeft, name, "%d sandboxes, %d containers, volumes %v", len(in.Observed.Sandboxes),
			len(in.Observed.Containers), in.Observed.Volumes)
	}
	if d := in.Pod.Spec.ActiveDeadlineSeconds; d != nil && w.clean && out.Life == podlife.Syncing &&
		out.Status.StartTime != nil {
		if over := in.Now.Sub(out.Status.StartTime.Add(time.Duration(*d) * time.Second)); over > 2*time.Second {
			w.broken(deadlineKept, name, "continues %v after its deadline of %ds", over, *d)
		}
	}
}

// decides reports whether a Step did more than begin probes.
func decides(out *podlife.Output) bool {
	return len(out.Cancel) > 0 || slices.ContainsFunc(out.Begin, func(b podlife.Begin) bool {
		_, probe := b.Action.(podlife.RunProbe)
		return !probe
	})
}

// sameTurn compares two results of Step. Statuses have a faster comparison than the rest.
func sameTurn(s, t podlife.State, x, y podlife.Output) bool {
	if podstatus.Equal(&s.Last, &t.Last) && podstatus.Equal(&x.Status, &y.Status) {
		s.Last, t.Last, x.Status, y.Status = corev1.PodStatus{}, corev1.PodStatus{}, corev1.PodStatus{},
			corev1.PodStatus{}
	}
	return reflect.DeepEqual(s, t) && reflect.DeepEqual(x, y)
}

// checkWaits checks what a pod waits for, and that each wait has an end.
func (w *world) checkWaits(own *owner, in podlife.Input, out *podlife.Output) {
	name := own.pod.Name
	flying := len(out.Begin)
	acts := 0 // actions other than probes
	for _, f := range own.flights {
		flying++
		if _, ok := f.action.(podlife.RunProbe); !ok {
			acts++
		}
	}
	for _, x := range out.Waits {
		if flying == 0 && out.Wake.IsZero() && out.Look.IsZero() && x.For != "network" && x.For != "room" &&
			x.For != "init container" {
			w.broken(waitHasWake, name, "waits for %s %s", x.For, x.Object)
		}
		if x.For == "" || x.Since.IsZero() {
			w.broken(neverSilent, name, "a wait lacks its subject or its start: %+v", x)
		}
	}
	if out.Life == podlife.Syncing && flying == 0 && len(out.Waits) == 0 && !out.Wake.IsZero() && !timed(own.pod) {
		w.broken(idleIsQuiet, name, "wakes at %v for nothing", out.Wake)
	}
	if len(out.Waits) == 0 && acts+len(out.Begin) == 0 {
		if out.Life == podlife.Terminating {
			w.broken(neverSilent, name, "is %s and waits for nothing", out.Life)
		}
		if c := dueSilently(own.pod, &out.Status); c != "" && out.Life == podlife.Syncing {
			w.broken(neverSilent, name, "%s does not run, and nothing is waited for", c)
		}
	}
	if flying == 0 && len(out.Waits) == 0 && out.Wake.IsZero() {
		w.checkDead(own, in)
	}
}

// dueSilently returns a regular container that is waiting according to its status.
func dueSilently(p *corev1.Pod, st *corev1.PodStatus) string {
	for _, c := range st.ContainerStatuses {
		always := p.Spec.RestartPolicy == corev1.RestartPolicyAlways && ownPolicy(p, c.Name) == nil
		lost := c.LastTerminationState.Terminated != nil // and may not be restarted (L7.73)
		if c.State.Waiting != nil && (always || !lost) || c.State.Terminated != nil && always {
			return c.Name
		}
	}
	return ""
}

func ownPolicy(p *corev1.Pod, name string) *corev1.ContainerRestartPolicy {
	c, _, _ := containerOf(p, name)
	if c == nil {
		return nil
	}
	return c.RestartPolicy
}

// checkDead looks for exited instances that will never be removed.
func (w *world) checkDead(own *owner, in podlife.Input) {
	for i, c := range in.Observed.Containers {
		if c.State != podlife.ContainerExited {
			continue
		}
		for _, d := range in.Observed.Containers[:i] {
			if d.Name == c.Name && d.State == podlife.ContainerExited {
				w.broken(deadIsCollected, own.pod.Name, "%s and %s are kept", d.ID, c.ID)
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

func timed(p *corev1.Pod) bool {
	if p.Spec.ActiveDeadlineSeconds != nil {
		return true
	}
	for _, c := range containers(p) {
		if c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil {
			return true
		}
	}
	return false
}
