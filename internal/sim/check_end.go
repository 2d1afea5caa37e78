package sim

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
)

// longest is the longest time for which a container that should run may not run: the longest
// back-off, a start, a probe.
const longest = 12 * time.Minute

// checkRecovered checks that some time after the last fault every pod runs its containers, or
// reports what it waits for, and that its status is correct.
func (w *world) checkRecovered() {
	for _, o := range w.pods {
		own := w.agent.find(o)
		w.checkOver(o, own)
		if !o.exists || own == nil && podstatus.Terminal(o.pod.Status.Phase) {
			continue
		}
		if own == nil {
			w.broken(recovers, o.pod.Name, "has no owner")
			continue
		}
		w.checkSingle(o)
		if own.stage != podlife.Syncing {
			continue
		}
		w.checkInForce(o, own)
		w.checkTrue(o, own)
		for _, c := range containers(o.pod) {
			w.checkRuns(o, own, c)
		}
		if c := podstatus.Condition(own.published.Conditions, corev1.AllContainersRestarting); c != nil &&
			c.Status == corev1.ConditionTrue && w.wall().Sub(c.LastTransitionTime.Time) > longest {
			w.broken(resetEnds, o.pod.Name, "all containers restart since %v", c.LastTransitionTime)
		}
	}
}

// checkOver checks the pods that should have ended long ago.
func (w *world) checkOver(o *object, own *owner) {
	if o.requested.IsZero() || w.loop.now.Sub(o.requested) < longest {
		return
	}
	if o.exists && o.pod.DeletionTimestamp != nil && !o.finalizer && !o.static {
		w.broken(deletedEnds, o.pod.Name, "was deleted at +%v and is still there, phase %s", o.requested.Sub(epoch),
			o.pod.Status.Phase)
	}
	if own != nil && (own.stopped || own.rejected != nil) && !podstatus.Terminal(own.published.Phase) {
		w.broken(stoppedEnds, o.pod.Name, "stopped at +%v, is still %s", o.requested.Sub(epoch), own.published.Phase)
	}
	if d := o.pod.Spec.ActiveDeadlineSeconds; own != nil && d != nil && o.exists && own.published.StartTime != nil &&
		!podstatus.Terminal(own.published.Phase) && w.skew == 0 && w.slept == 0 {
		if over := w.wall().Sub(own.published.StartTime.Add(time.Duration(*d) * time.Second)); over > longest {
			w.broken(deadlineKept, o.pod.Name, "is %s %v after its deadline", own.published.Phase, over)
		}
	}
}

// checkSingle checks that no sandbox or container of a pod exists twice.
func (w *world) checkSingle(o *object) {
	sandboxes, containers := w.list(o.pod.UID)
	ready := 0
	for _, s := range sandboxes {
		if s.State == cri.PodSandboxState_SANDBOX_READY {
			ready++
		}
	}
	if ready > 1 {
		w.broken(oneSandbox, o.pod.Name, "%d are ready", ready)
	}
	for i, c := range containers {
		for _, d := range containers[:i] {
			if c.Metadata.Name == d.Metadata.Name && c.State == cri.ContainerState_CONTAINER_RUNNING &&
				d.State == cri.ContainerState_CONTAINER_RUNNING {
				w.broken(singleInstance, o.pod.Name, "%s and %s run", d.Id, c.Id)
			}
		}
	}
}

// checkInForce checks the results of resizes.
func (w *world) checkInForce(o *object, own *owner) {
	if o.static {
		return
	}
	pending, progress := podstatus.Condition(own.published.Conditions, corev1.PodResizePending),
		podstatus.Condition(own.published.Conditions, corev1.PodResizeInProgress)
	if progress != nil && w.wall().Sub(progress.LastTransitionTime.Time) > longest {
		w.broken(resizeEnds, o.pod.Name, "in progress since %v: %s", progress.LastTransitionTime, progress.Message)
	}
	if pending != nil || progress != nil {
		return
	}
	_, items := w.list(o.pod.UID)
	for _, c := range containers(o.pod) {
		if !sameResources(o.pod, own.runs, c.Name) {
			w.broken(resizeEnds, o.pod.Name, "%s should have%s, has%s, and no condition says why", c.Name, sizes(o.pod),
				sizes(own.runs))
		}
		t := o.container(c.Name)
		for _, i := range items {
			if i.Id != t.running || w.loop.now.Sub(t.lastStart) < time.Minute {
				continue
			}
			st, err := w.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: i.Id})
			if err != nil {
				continue
			}
			want, have := limitsOf(o.pod, c), st.Status.GetResources().GetLinux()
			if want.CpuQuota != have.GetCpuQuota() || want.MemoryLimitInBytes != have.GetMemoryLimitInBytes() ||
				want.CpuShares != have.GetCpuShares() {
				w.broken(resizeEnds, o.pod.Name, "%s runs with %v, not %v", i.Id, have, want)
			}
		}
	}
}

// checkTrue compares the status with the runtime.
func (w *world) checkTrue(o *object, own *owner) {
	st := &own.published
	if !o.static {
		st = &o.pod.Status
	}
	if away := own.wanted != nil || own.writing; away {
		return
	}
	_, items := w.list(o.pod.UID)
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			t := o.container(c.Name)
			if w.loop.now.Sub(t.lastSeen) < 5*time.Second {
				continue // too new
			}
			id := ""
			for _, item := range items {
				if item.Metadata.Name == c.Name && item.State == cri.ContainerState_CONTAINER_RUNNING {
					id = runtimeName + "://" + item.Id
					if c.State.Running == nil || c.ContainerID != id {
						w.broken(statusTrue, o.pod.Name, "%s runs, the status says %+v %s", item.Id, c.State,
							c.ContainerID)
					}
				}
			}
			if c.State.Running != nil && id == "" {
				w.broken(statusTrue, o.pod.Name, "%s does not run, the status names %s as running", c.Name, c.ContainerID)
			}
		}
	}
}

// checkRuns checks that a container runs, or was tried within the longest back-off, or that the pod
// reports what it waits for.
func (w *world) checkRuns(o *object, own *owner, c *corev1.Container) {
	t := o.container(c.Name)
	if p := c.LivenessProbe; p != nil && c.StartupProbe == nil && c.Lifecycle == nil && t.running != "" &&
		w.loop.now.Sub(t.lastStart) > 10*time.Minute &&
		w.loop.now.Sub(t.lastProbe) > 5*time.Minute {
		w.broken(recovers, o.pod.Name, "%s was last probed %v ago", c.Name, w.loop.now.Sub(t.lastProbe))
	}
	if o.pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || c.RestartPolicy != nil &&
		!strings.HasPrefix(c.Name, "side") || t.running != "" ||
		strings.HasPrefix(c.Name, "init") && (t.done || o.initialized()) || !t.lastSeen.IsZero() &&
		w.loop.now.Sub(t.lastSeen) < longest {
		return
	}
	if why := own.keeps(c); why == "" {
		w.broken(recovers, o.pod.Name, "%s last ran %v ago, and the status gives no reason for it: %+v", c.Name,
			w.loop.now.Sub(t.lastSeen), own.waits)
	}
}

// keeps returns why a container does not run, from the pod's waits.
func (own *owner) keeps(c *corev1.Container) string {
	for _, x := range own.waits {
		switch {
		case x.Object == c.Name && (x.For == "start" || x.For == "back-off"):
			return x.For
		case x.For == "image" && (x.Object == c.Image || x.Object == c.Name) && own.w.troubled(c):
			return "image " + x.Object
		}
	}
	// A container before it has not started or finished yet.
	for _, list := range [][]corev1.ContainerStatus{own.published.InitContainerStatuses,
		own.published.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			if s.Name == c.Name {
				break
			}
			if b, _, init := containerOf(own.pod, s.Name); b != nil && init && !s.Ready &&
				(s.Started == nil || !*s.Started || own.w.troubled(b) || strings.HasPrefix(s.Name, "init")) {
				return "init container " + s.Name
			}
		}
	}
	return ""
}

func (o *object) initialized() bool {
	for i := range o.pod.Spec.Containers {
		if o.container(o.pod.Spec.Containers[i].Name).started {
			return true
		}
	}
	return false
}

// checkEnd checks that nothing of a pod is left some time after all pods were deleted.
func (w *world) checkEnd() {
	for _, o := range w.pods {
		s, c := w.list(o.pod.UID)
		if o.exists {
			w.broken(deletedEnds, o.pod.Name, "is still there, phase %s", o.pod.Status.Phase)
		}
		if len(s)+len(c) > 0 || w.volumes[o.pod.UID].Present {
			w.broken(nothingLeft, o.pod.Name, "%d sandboxes, %d containers, volumes %v", len(s), len(c),
				w.volumes[o.pod.UID])
		}
		if own := w.agent.find(o); own != nil {
			w.broken(nothingLeft, o.pod.Name, "is still driven: %s, in flight %d", own.stage, len(own.flights))
		}
	}
}
