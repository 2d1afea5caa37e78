package sim

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
)

// checkBegin checks an action when it is begun.
func (w *world) checkBegin(own *owner, k podlife.Key, a podlife.Action, life podlife.Life) {
	name := own.pod.Name
	for _, f := range own.flights {
		if f.key == k {
			w.broken(oneKey, name, "%s begins while it is in flight", k)
		}
	}
	soon := false
	switch a.(type) {
	case podlife.PullImage, podlife.AdmitResize: // after the pull of another container, or if resources became free
		soon = true
	}
	for _, f := range own.failures {
		if !soon && f.key == k && w.loop.now.Sub(f.at) < time.Second {
			w.broken(retryWaits, name, "%s failed %v ago", f.key, w.loop.now.Sub(f.at))
		}
	}
	switch a := a.(type) {
	case podlife.CreateSandbox, podlife.StartContainer, podlife.PullImage, podlife.PrepareVolumes:
		// A pod that has something on the machine does not wait: its resources are counted.
		if x := own.observed; own.hold != nil && len(x.Sandboxes)+len(x.Containers) == 0 {
			w.broken(heldWaits, name, "%s before there is room", k)
		}
		if s, ok := a.(podlife.StartContainer); ok {
			w.checkPostStart(own, s.Container)
			for _, l := range own.logs {
				if l.Container == s.Container && s.Attempt <= l.Attempt {
					w.broken(countsGoOn, name, "%s after %d.log", k, l.Attempt)
				}
			}
		}
		if life != podlife.Syncing {
			w.broken(noStartWhenOver, name, "%s while %s", k, life)
		}
		if own.rejected != nil {
			w.broken(rejectedIsOver, name, "%s for a pod that was refused", k)
		}
		if p, ok := a.(podlife.PullImage); ok {
			if c, _, _ := containerOf(own.pod, p.Container); c != nil && c.ImagePullPolicy == corev1.PullNever {
				w.broken(pullPolicyKept, name, "%s must not pull", p.Container)
			}
		}
	case podlife.RunHook:
		if a.Kind != podlife.PreStop {
			return
		}
		w.checkTraffic(own, a.Container, life)
		own.object.container(a.Container).stops(w.loop.now)
		if slices.ContainsFunc(own.hooks, func(h hook) bool { return h.id == a.ContainerID }) {
			w.broken(preStopOnce, name, "a second time for %s", a.ContainerID)
		}
	case podlife.StopContainer:
		w.checkTraffic(own, a.Container, life)
		w.checkStop(own, a, life)
	}
}

// graceOf returns the grace period of a pod in its owner's view (L7.15).
func graceOf(own *owner) time.Duration {
	g := tgps(own.pod)
	if d := own.pod.DeletionGracePeriodSeconds; d != nil {
		g = time.Duration(*d) * time.Second
	}
	if own.stop != nil && own.stop.Grace != nil {
		g = min(g, *own.stop.Grace)
	}
	return max(g, 2*time.Second)
}

func (w *world) checkStop(own *owner, a podlife.StopContainer, life podlife.Life) {
	name := own.pod.Name
	t := own.object.container(a.Container)
	t.stops(w.loop.now)
	if a.Grace < 2*time.Second {
		w.broken(leastGrace, name, "%s gets %v", a.ContainerID, a.Grace)
	}
	if life != podlife.Syncing && a.Grace >= graceOf(own)+time.Second { // spent time counts in seconds (L6.14)
		w.broken(graceKept, name, "%s gets %v of %v", a.ContainerID, a.Grace, graceOf(own))
	}
	c, index, init := containerOf(own.pod, a.Container)
	if c == nil || t.running != a.ContainerID {
		return
	}
	over := !own.ending.IsZero() && !w.loop.now.Before(own.ending.Add(own.object.grace))
	// no hook then (L6.5)
	noGrace := life == podlife.Syncing && (tgps(own.pod) == 0 || own.state.RestartAll.Active) || own.rejected != nil
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && !over && !noGrace && !t.obscure {
		ok := false
		for _, h := range own.hooks {
			if h.id == a.ContainerID && (h.ended || !w.loop.now.Before(h.until)) {
				ok = true
			}
		}
		if !ok {
			w.broken(preStopFirst, name, "%s is stopped", a.ContainerID)
		}
	}
	if life != podlife.Terminating || !init || !strings.HasPrefix(c.Name, "side") || over ||
		t.stopping.Before(own.ending) {
		return
	}
	for _, s := range own.state.Stops {
		if s.ContainerID == a.ContainerID && !w.now().Before(s.Deadline) {
			return // ordered before the pod ended, and its grace period has passed
		}
	}
	served := func(list []corev1.Container) {
		for _, s := range list {
			if x := own.object.truth[s.Name]; x != nil && x.running != "" && !strings.HasPrefix(s.Name, "init") &&
				w.seen(own, x.running) {
				w.broken(sidecarsLast, name, "%s is stopped while %s runs", c.Name, s.Name)
			}
		}
	}
	served(own.pod.Spec.Containers)
	served(own.pod.Spec.InitContainers[index+1:])
}

// seen reports whether the agent has observed that an instance runs.
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
	o, name := own.object, own.pod.Name
	sandboxes, containers := w.list(own.pod.UID)
	for _, c := range containers {
		if c.Metadata.Name == a.Container && c.State == cri.ContainerState_CONTAINER_RUNNING &&
			c.PodSandboxId == a.SandboxID && int(c.Metadata.Attempt) != a.Attempt {
			w.broken(singleInstance, name, "%s runs, attempt %d is started", c.Id, a.Attempt)
		}
	}
	ready := false
	for _, s := range sandboxes {
		ready = ready || s.Id == a.SandboxID && s.State == cri.PodSandboxState_SANDBOX_READY
	}
	if !ready || own.dead {
		return // the runtime rejects it, or it is a call of a crashed agent
	}
	if !w.volumes[own.pod.UID].Mounted {
		w.broken(volumesMounted, name, "%s starts", a.Container)
	}
	t := o.container(a.Container)
	c, index, init := containerOf(own.pod, a.Container)
	if c == nil {
		if w.clean && t.started {
			w.broken(ephemeralOnce, name, "%s starts again", a.Container)
		}
		return // ephemeral containers do not wait
	}
	before := own.pod.Spec.InitContainers
	if init {
		before = before[:index]
	}
	for i := range before {
		b := o.container(before[i].Name)
		if b.sandbox != a.SandboxID || strings.HasPrefix(before[i].Name, "init") && !b.done || !b.started {
			w.broken(initFirst, name, "%s starts before %s is done", a.Container, before[i].Name)
		}
	}
	if !slices.ContainsFunc(o.granted, func(p *corev1.Pod) bool { return sameResources(p, own.runs, a.Container) }) {
		w.broken(resizeGranted, name, "%s starts with %v", a.Container, sizes(own.runs))
	}
	if w.clean && !o.upset {
		w.checkRestart(own, a, c, t)
	}
}

// checkRestart checks whether a container may run again, with a model of the rules for runs without faults.
func (w *world) checkRestart(own *owner, a podlife.StartContainer, c *corev1.Container, t *truth) {
	o, name := own.object, own.pod.Name
	if c.ImagePullPolicy == corev1.PullAlways && !t.pulled {
		w.broken(pullPolicyKept, name, "%s starts without a pull", a.Container)
	}
	t.pulled = false
	if o.updated {
		return
	}
	if strings.HasPrefix(c.Name, "init") && t.sandbox == a.SandboxID && t.done {
		w.broken(initOnce, name, "%s starts again", a.Container)
	}
	if !t.vague && t.exits > 0 && w.loop.now.Before(t.due) {
		w.broken(backoffKept, name, "%s is restarted %v early", a.Container, t.due.Sub(w.loop.now))
	}
	if t.exits == 0 || strings.HasPrefix(c.Name, "side") {
		return
	}
	switch p := own.pod.Spec.RestartPolicy; {
	case p == corev1.RestartPolicyNever, p == corev1.RestartPolicyOnFailure && t.done && !t.wasStopped:
		w.broken(policyKept, name, "%s is restarted with policy %s", a.Container, p)
	}
}

// checkPostStart checks that a regular container does not start while a postStart hook before it runs.
func (w *world) checkPostStart(own *owner, container string) {
	c, index, init := containerOf(own.pod, container)
	if c == nil || init {
		return
	}
	for _, f := range own.flights {
		h, ok := f.action.(podlife.RunHook)
		if !ok || h.Kind != podlife.PostStart || f.done || f.cancelled {
			continue
		}
		if c, i, init := containerOf(own.pod, h.Container); c != nil && !init && i < index &&
			own.object.container(h.Container).stopping.IsZero() {
			w.broken(postStartFirst, own.pod.Name, "%s starts while the hook of %s runs", container, h.Container)
		}
	}
}

// checkResize checks the new limits of a container when they take effect.
func (w *world) checkResize(own *owner, a podlife.Resize, l *cri.LinuxContainerResources) {
	o, name := own.object, own.pod.Name
	if own.dead {
		return
	}
	if !slices.ContainsFunc(o.granted, func(p *corev1.Pod) bool {
		c, _, _ := containerOf(p, a.Container)
		return c != nil && sameRequirements(c.Resources, a.Resources)
	}) {
		w.broken(resizeGranted, name, "%s gets %v", a.Container, a.Resources)
	}
	g := w.groups[own.pod.UID]
	if g.cpu > 0 && l.CpuQuota > g.cpu || g.memory > 0 && l.MemoryLimitInBytes > g.memory {
		w.broken(groupFirst, name, "%s gets %d and %d, its pod %d and %d", a.Container, l.CpuQuota,
			l.MemoryLimitInBytes, g.cpu, g.memory)
	}
}

// sameResources reports whether two versions of a pod have the same resources for a container.
func sameResources(a, b *corev1.Pod, container string) bool {
	x, _, _ := containerOf(a, container)
	y, _, _ := containerOf(b, container)
	return x != nil && y != nil && sameRequirements(x.Resources, y.Resources)
}

func sameRequirements(a, b corev1.ResourceRequirements) bool {
	list := func(x, y corev1.ResourceList) bool {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			p, q := x[name], y[name]
			if p.Cmp(q) != 0 {
				return false
			}
		}
		return true
	}
	return list(a.Requests, b.Requests) && list(a.Limits, b.Limits)
}

// checkDeleted checks the state of the pod when the agent deletes the object (L7.41).
func (w *world) checkDeleted(o *object) {
	if !podstatus.Terminal(o.pod.Status.Phase) || w.volumes[o.pod.UID].Present {
		w.broken(deletedIsEnded, o.pod.Name, "is deleted in phase %s, volumes %v", o.pod.Status.Phase,
			w.volumes[o.pod.UID])
	}
}

// checkNothing checks that nothing runs in a sandbox of the pod, or in any if the ID is empty.
func (w *world) checkNothing(o *object, sandbox string, i Invariant, when string) {
	_, containers := w.list(o.pod.UID)
	for _, c := range containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING && (sandbox == "" || c.PodSandboxId == sandbox) {
			w.broken(i, o.pod.Name, "%s runs while %s", c.Id, when)
		}
	}
}

// checkNothingRuns checks that teardown comes after the containers have ended. A late call of a
// crashed agent may start a container again, which is not an error of Step.
func (w *world) checkNothingRuns(o *object, sandbox, when string) {
	if w.result.Crashes == 0 {
		w.checkNothing(o, sandbox, volumesLast, when)
	}
}

func (w *world) checkNotRunning(o *object, id string) {
	_, containers := w.list(o.pod.UID)
	for _, c := range containers {
		if c.Id == id && c.State == cri.ContainerState_CONTAINER_RUNNING {
			w.broken(runningIsKept, o.pod.Name, "%s is removed", id)
		}
	}
}
