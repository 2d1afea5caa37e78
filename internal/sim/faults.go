package sim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// planFaults decides what goes wrong on the machine and around it.
func (w *world) planFaults() {
	for range w.rand.IntN(5) {
		w.sometime(func() { w.agent.crash() })
	}
	if w.chance(0.3) {
		keep := w.chance(0.5)
		w.sometime(func() { w.reboot(keep) })
	}
	for range w.rand.IntN(3) {
		d := time.Second + w.upTo(2*time.Hour)
		switch w.rand.IntN(3) {
		case 0:
			w.sometime(func() { w.jump(d) })
		case 1:
			w.sometime(func() { w.setBack(d) })
		case 2:
			w.sometime(func() { w.suspend(d) })
		}
	}
	for range w.rand.IntN(3) {
		d := w.upTo(10 * time.Minute)
		w.sometime(func() {
			w.logf("the API server is away for %v", d)
			w.apiUp = later(w.apiUp, w.loop.now.Add(d))
		})
	}
	if w.chance(0.3) {
		w.sometime(func() {
			w.logf("the registry is slow")
			w.slow = w.loop.now.Add(20 * time.Minute)
		})
	}
}

// reboot restarts the machine: the agent comes back with another boot id, and no
// process, sandbox or mount is left. With keep the runtime still knows what it had.
func (w *world) reboot(keep bool) {
	if w.agent.down || w.calmed {
		return
	}
	w.logf("the machine restarts, the runtime remembers: %v", keep)
	w.result.Reboots++
	w.boot++
	w.agent.crash()
	w.late = w.loop.now // no call of the old agent takes effect any more
	w.runtime.Reboot(keep)
	for _, o := range w.pods {
		o.upset = true
	}
}

// remount is the view of a new agent: it must set up volumes again before it may
// count on them.
func (w *world) remount() {
	w.mounts++
	for _, o := range w.pods {
		v := w.volumes[o.pod.UID]
		v.Mounted = false
		w.volumes[o.pod.UID] = v
	}
}

// jump sets the clock forward.
func (w *world) jump(d time.Duration) {
	w.logf("the clock jumps ahead by %v", d)
	w.skew += d
}

// setBack sets the clock back while the agent is not there: for a living one Now never falls.
func (w *world) setBack(d time.Duration) {
	if w.agent.down || w.calmed {
		return
	}
	w.agent.crash()
	w.logf("the clock is set back by %v", d)
	w.skew -= d
}

// suspend stops the whole machine for a while.
func (w *world) suspend(d time.Duration) {
	w.logf("the machine sleeps for %v", d)
	w.loop.sleep(d)
}

// accident harms a pod from outside its agent.
func (w *world) accident(o *object) {
	o.upset = true
	sandboxes, containers := w.list(o.pod.UID)
	switch w.rand.IntN(4) {
	case 0:
		if len(sandboxes) > 0 {
			id := sandboxes[len(sandboxes)-1].Id
			w.logf("%s sandbox %s dies", o.pod.Name, id)
			w.runtime.KillSandbox(id)
		}
	case 1, 2:
		if len(containers) > 0 {
			id := containers[w.rand.IntN(len(containers))].Id
			reason := []string{"", "OOMKilled"}[w.rand.IntN(2)]
			w.logf("%s container %s is killed %s", o.pod.Name, id, reason)
			w.runtime.End(id, 137, reason)
		}
	case 3:
		if len(containers) > 0 {
			id := containers[w.rand.IntN(len(containers))].Id
			w.logf("%s container %s vanishes", o.pod.Name, id)
			_, _ = w.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
		}
	}
}

// calm ends all faults; pods come back until deleteAll.
func (w *world) calm() {
	w.calmed, w.fault, w.apiUp, w.slow = true, 0, time.Time{}, time.Time{}
	w.logf("calm")
}

// deleteAll deletes what is left.
func (w *world) deleteAll() {
	w.logf("everything is deleted")
	for _, o := range w.pods {
		w.delete(o, 30)
	}
}

// checkRecovered checks that after some time without faults every pod that should
// run does: each container of its spec runs, or was tried within the longest back-offs.
func (w *world) checkRecovered() {
	for _, o := range w.pods {
		own := w.agent.find(o)
		st := &o.pod.Status
		if !o.exists || !o.asked.IsZero() || o.pod.DeletionTimestamp != nil || ended(st.Phase) || own != nil && own.stop != nil ||
			o.pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || o.pod.Spec.ActiveDeadlineSeconds != nil {
			continue
		}
		if own == nil {
			w.broken(recovers, "%s is driven by nobody", o.pod.Name)
		}
		tried := false
		for _, list := range [][]corev1.Container{o.pod.Spec.InitContainers, o.pod.Spec.Containers} {
			for i := range list {
				t := o.container(list[i].Name)
				tried = tried || t.running != "" || !t.lastSeen.IsZero() && w.loop.now.Sub(t.lastSeen) < 12*time.Minute
			}
		}
		if !tried {
			w.broken(recovers, "%s: no container runs or has run in the last 12 minutes", o.pod.Name)
		}
		for i := range o.pod.Spec.Containers {
			c := &o.pod.Spec.Containers[i]
			t := o.container(c.Name)
			if p := c.LivenessProbe; p != nil && c.StartupProbe == nil && c.Lifecycle == nil && t.running != "" && w.loop.now.Sub(t.lastStart) > 10*time.Minute &&
				w.loop.now.Sub(t.lastProbe) > 5*time.Minute {
				w.broken(recovers, "%s: %s was last probed %v ago", o.pod.Name, c.Name, w.loop.now.Sub(t.lastProbe))
			}
			if c.RestartPolicy == nil && t.sandbox != "" && o.initialized() && t.running == "" && w.loop.now.Sub(t.lastSeen) > 12*time.Minute {
				w.broken(recovers, "%s: %s last ran %v ago", o.pod.Name, c.Name, w.loop.now.Sub(t.lastSeen))
			}
		}
	}
}

func (o *object) initialized() bool {
	for i := range o.pod.Spec.Containers {
		if o.container(o.pod.Spec.Containers[i].Name).running != "" {
			return true
		}
	}
	return false
}
