package sim

import (
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
)

// planFaults schedules the faults of the machine and its environment.
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
			crash := w.chance(0.5)
			w.sometime(func() { w.setBack(d, crash) })
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
	if w.chance(0.3) {
		d := w.upTo(10 * time.Minute)
		w.sometime(func() {
			w.logf("the disk is full for %v", d)
			w.full = later(w.full, w.loop.now.Add(d))
		})
	}
	for range w.rand.IntN(3) * w.rand.IntN(2) {
		d := w.upTo(3 * time.Minute)
		w.sometime(func() {
			w.logf("the runtime does not answer for %v", d)
			w.silent = later(w.silent, w.loop.now.Add(d))
		})
	}
	for range w.rand.IntN(3) * w.rand.IntN(2) {
		w.sometime(w.collectImages)
	}
}

// reboot restarts the machine: the agent comes back; processes, sandboxes, and mounts are gone.
// With keep, the runtime still has its records.
func (w *world) reboot(keep bool) {
	if w.agent.down || w.faultsEnded {
		return
	}
	w.logf("the machine restarts, the runtime remembers: %v", keep)
	w.result.Reboots++
	w.agent.crash()
	w.late = w.loop.now // calls of the old agent have no effect any more
	w.runtime.Reboot(keep)
	for _, o := range w.pods {
		o.upset = true
	}
}

// collectImages removes every image from the machine.
func (w *world) collectImages() {
	w.logf("the images are collected")
	list, _ := w.runtime.ListImages(ctx, &cri.ListImagesRequest{})
	for _, i := range list.GetImages() {
		_, _ = w.runtime.RemoveImage(ctx, &cri.RemoveImageRequest{Image: i.Spec})
	}
}

// jump sets the clock forward.
func (w *world) jump(d time.Duration) {
	w.logf("the clock jumps ahead by %v", d)
	w.skew += d
}

// setBack sets the clock back, with or without an agent that observes the change.
func (w *world) setBack(d time.Duration, crash bool) {
	if crash {
		if w.agent.down || w.faultsEnded {
			return
		}
		w.agent.crash()
	}
	w.logf("the clock is set back by %v", d)
	w.skew -= d
}

// suspend stops the whole machine for some time.
func (w *world) suspend(d time.Duration) {
	w.logf("the machine sleeps for %v", d)
	w.slept += d
	w.loop.sleep(d)
}

// accident damages a pod without the agent.
func (w *world) accident(o *object) {
	o.upset = true
	sandboxes, containers := w.list(o.pod.UID)
	switch w.rand.IntN(7) {
	case 5: // another client, or a late call of a crashed agent
		if own := w.agent.find(o); len(sandboxes) > 0 && own != nil && own.stage == podlife.Syncing {
			w.logf("%s has a second sandbox", o.pod.Name)
			_, _ = w.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{
				Metadata: &cri.PodSandboxMetadata{Name: o.pod.Name, Namespace: o.pod.Namespace, Uid: string(o.pod.UID),
					Attempt: sandboxes[len(sandboxes)-1].Metadata.Attempt + 1},
				Labels: map[string]string{uidLabel: string(o.pod.UID)}}})
		}
	case 6:
		if len(sandboxes) > 0 {
			w.logf("%s sandbox loses its address", o.pod.Name)
			w.runtime.LoseAddress(sandboxes[len(sandboxes)-1].Id)
		}
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
			code := int32(137)
			if reason != "" && w.chance(0.3) {
				code = 0 // a child process was killed, the container's process succeeded
			}
			w.logf("%s container %s is killed %s", o.pod.Name, id, reason)
			w.runtime.End(id, code, reason)
		}
	case 3:
		if len(containers) > 0 {
			id := containers[w.rand.IntN(len(containers))].Id
			o.vanished = true
			w.logf("%s container %s vanishes", o.pod.Name, id)
			_, _ = w.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
		}
	case 4:
		if len(containers) > 0 {
			id := containers[w.rand.IntN(len(containers))].Id
			w.logf("%s the runtime loses track of %s", o.pod.Name, id)
			w.runtime.Obscure(id)
			for _, c := range containers {
				if c.Id == id {
					o.container(c.Metadata.Name).obscure = true
				}
			}
		}
	}
}

// endFaults ends all faults; pods recover until deleteAll.
func (w *world) endFaults() {
	w.faultsEnded, w.fault = true, 0
	w.apiUp, w.slow, w.full, w.silent = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	for _, o := range w.pods {
		w.free(o)
	}
	w.logf("calm")
}

// deleteAll deletes all remaining pods.
func (w *world) deleteAll() {
	w.logf("everything is deleted")
	for _, o := range w.pods {
		w.delete(o, 30)
		w.finalize(o)
	}
}
