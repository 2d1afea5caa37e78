package sim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
)

// checkStatus compares a new status of Step with the one before.
func (w *world) checkStatus(own *owner, in podlife.Input, out *podlife.Output) {
	st, old, name := &out.Status, &own.last, own.pod.Name
	if podstatus.Terminal(old.Phase) && st.Phase != old.Phase {
		w.broken(phaseLatched, name, "%s after %s", st.Phase, old.Phase)
	}
	if podstatus.Terminal(st.Phase) {
		w.checkEnded(own, st)
		if !podstatus.Terminal(old.Phase) {
			w.checkEnds(own, in, st)
		}
	}
	if st.ObservedGeneration < old.ObservedGeneration {
		w.broken(generationRises, name, "%d after %d", st.ObservedGeneration, old.ObservedGeneration)
	}
	w.checkCounts(name, old, st)
	w.checkReady(own, in, st)
	w.checkAllowed(own, old, st)
	for i := range st.Conditions {
		c := &st.Conditions[i]
		resize := c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
		if o := podstatus.Condition(old.Conditions, c.Type); o != nil && podstatus.OwnCondition(c.Type) &&
			!resize && o.Status == c.Status && !o.LastTransitionTime.Equal(&c.LastTransitionTime) {
			w.broken(conditionTime, name, "%s=%s from %v to %v", c.Type, c.Status, o.LastTransitionTime,
				c.LastTransitionTime)
		}
	}
	if old.StartTime != nil && (st.StartTime == nil || !st.StartTime.Equal(old.StartTime)) {
		w.broken(startTimeFixed, name, "from %v to %v", old.StartTime, st.StartTime)
	}
	if own.rejected != nil {
		return // its status is replaced
	}
	if len(old.PodIPs) > 0 && len(st.PodIPs) == 0 {
		w.broken(addressesKept, name, "%v are lost", old.PodIPs)
	}
	for i := range in.Pod.Status.Conditions {
		theirs := &in.Pod.Status.Conditions[i]
		if podstatus.OwnCondition(theirs.Type) || theirs.Type == corev1.DisruptionTarget && ours(st) {
			continue
		}
		if c := podstatus.Condition(st.Conditions, theirs.Type); c == nil || *c != *theirs {
			w.broken(othersKept, name, "%s=%s becomes %v", theirs.Type, theirs.Status, c)
		}
	}
}

// checkAllowed checks a status, and the change from the one before, with core/podstatus. Another
// writer may have ended the pod in any way.
func (w *world) checkAllowed(own *owner, old, st *corev1.PodStatus) {
	if own.object.collected {
		return
	}
	before, after := *own.pod, *own.pod
	before.Status, after.Status = *old, *st
	b := slices.DeleteFunc(podstatus.Check(&after), func(b podstatus.Breach) bool {
		return b.Rule == podstatus.EndTime && w.skew != 0 ||
			// nothing may say any more that a vanished sidecar had started
			b.Rule == podstatus.InitOrder && (own.gap || own.object.vanished) ||
			b.Rule == podstatus.Ephemeral && !w.clean || // a start without effect uses up a restart count
			// its sandbox is not listed, or has lost its address
			b.Rule == podstatus.Addresses && (own.gap || own.object.upset)
	})
	if len(b) > 0 {
		w.broken(statusAllowed, own.pod.Name, "%v", b)
	}
	if b := podstatus.CheckChange(&before, &after); len(b) > 0 {
		w.broken(changeAllowed, own.pod.Name, "%v", b)
	}
}

// checkEnded checks a terminal status.
func (w *world) checkEnded(own *owner, st *corev1.PodStatus) {
	name := own.pod.Name
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		if c := podstatus.Condition(st.Conditions, t); c != nil && c.Status == corev1.ConditionTrue {
			w.broken(endedNotReady, name, "%s is True while %s", t, st.Phase)
		}
	}
	for _, t := range []corev1.PodConditionType{corev1.PodResizePending, corev1.PodResizeInProgress} {
		if podstatus.Condition(st.Conditions, t) != nil {
			w.broken(resizeOver, name, "%s while %s", t, st.Phase)
		}
	}
	if own.object.collected {
		return
	}
	if s := own.stop; own.stopped && (st.Phase != corev1.PodFailed || st.Reason != s.Reason) &&
		!(s.Reason == "Terminated" && st.Phase == corev1.PodSucceeded) {
		w.broken(stopKept, name, "is %s for %q, was stopped for %q", st.Phase, st.Reason, s.Reason)
	}
	if r := own.rejected; r != nil && (st.Phase != corev1.PodFailed || st.Reason != r.Reason) {
		w.broken(rejectedIsOver, name, "is %s for %q, was refused for %q", st.Phase, st.Reason, r.Reason)
	}
}

// checkEnds checks the transition to a terminal phase.
func (w *world) checkEnds(own *owner, in podlife.Input, st *corev1.PodStatus) {
	name := own.pod.Name
	if own.object.collected {
		return // another writer set it
	}
	for _, c := range in.Observed.Containers {
		if c.State == podlife.ContainerRunning {
			w.broken(terminalIsStill, name, "is %s while %s runs", st.Phase, c.ID)
		}
	}
	if st.Phase == corev1.PodSucceeded {
		for _, c := range st.ContainerStatuses {
			if t := c.State.Terminated; t == nil || t.ExitCode != 0 {
				w.broken(succeededMeans, name, "succeeded with %s: %+v", c.Name, c.State)
			}
		}
	}
	p := own.pod
	if own.object.static && !own.stopped && own.rejected == nil && p.Spec.ActiveDeadlineSeconds == nil &&
		p.Spec.RestartPolicy == corev1.RestartPolicyAlways &&
		!slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.RestartPolicy != nil }) &&
		!slices.ContainsFunc(p.Spec.InitContainers,
			func(c corev1.Container) bool { return c.RestartPolicyRules != nil }) {
		w.broken(staticLives, name, "is %s", st.Phase)
	}
}

func (w *world) checkReady(own *owner, in podlife.Input, st *corev1.PodStatus) {
	name, all := own.pod.Name, true
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			runs := c.State.Running != nil
			if c.Ready && !runs && c.State.Terminated == nil || c.Started != nil && *c.Started && !runs {
				w.broken(readyRuns, name, "%s: ready=%v started=%v", c.Name, c.Ready, c.Started != nil && *c.Started)
			}
			all = all && c.Ready
		}
	}
	for i := range st.ContainerStatuses {
		if c := &st.ContainerStatuses[i]; c.Ready && c.State.Running == nil {
			w.broken(readyRuns, name, "%s is ready and does not run", c.Name)
		}
	}
	if c := podstatus.Condition(st.Conditions, corev1.PodReady); c == nil || c.Status != corev1.ConditionTrue {
		return
	}
	for i := range st.ContainerStatuses {
		if c := &st.ContainerStatuses[i]; !c.Ready {
			w.broken(readyMeans, name, "%s is not ready", c.Name)
		}
	}
	for _, g := range in.Pod.Spec.ReadinessGates {
		if !podstatus.ConditionTrue(in.Pod.Status.Conditions, g.ConditionType) {
			w.broken(readyMeans, name, "the gate %s is closed", g.ConditionType)
		}
	}
}

func (w *world) checkCounts(name string, old, st *corev1.PodStatus) {
	for _, pair := range [][2][]corev1.ContainerStatus{{old.InitContainerStatuses, st.InitContainerStatuses},
		{old.ContainerStatuses, st.ContainerStatuses}} {
		for i := range pair[0] {
			a := &pair[0][i]
			for k := range pair[1] {
				if b := &pair[1][k]; a.Name == b.Name && b.RestartCount < a.RestartCount {
					w.broken(countsRise, name, "%s from %d to %d", a.Name, a.RestartCount, b.RestartCount)
				}
			}
		}
	}
}

// checkStored checks a status that reaches the API server, also after crashes of the agent.
func (w *world) checkStored(o *object, st *corev1.PodStatus) {
	if o.static && w.result.Crashes > 0 {
		o.stored = *st // a new agent does not have the earlier status
		return
	}
	name := o.pod.Name
	if podstatus.Terminal(o.stored.Phase) && st.Phase != o.stored.Phase {
		w.broken(phaseLatched, name, "%s stored after %s", st.Phase, o.stored.Phase)
	}
	w.checkCounts(name, &o.stored, st)
	if t := o.stored.StartTime; t != nil && (st.StartTime == nil || !st.StartTime.Equal(t)) {
		w.broken(startTimeFixed, name, "%v stored after %v", st.StartTime, t)
	}
	o.stored = *st
}
