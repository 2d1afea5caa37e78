package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/resources"
)

// flight is an action in progress.
type flight struct {
	key       podlife.Key
	action    podlife.Action
	done      bool // it has ended; the outcome may not be delivered yet
	cancelled bool
	undo      func() // cancels the timer that would end it
	orphan    func() // its effect after a crash of the agent
}

// failed is an action that failed.
type failed struct {
	key podlife.Key
	at  time.Time
}

// hook is a running preStop hook.
type hook struct {
	id    string
	until time.Time // when its time has passed
	ended bool
}

// begin begins an action like an executor: it ends some time later, with success or failure.
func (own *owner) begin(k podlife.Key, a podlife.Action) {
	w := own.w
	f := &flight{key: k, action: a}
	own.flights = append(own.flights, f)
	switch a := a.(type) {
	case podlife.StopContainer:
		if w.chance(w.fault / 2) {
			f.undo = w.after(w.upTo(100*time.Millisecond),
				func() { own.finish(f, failure("", "the runtime is busy"), nil) })
			return
		}
		f.undo = w.runtime.Stop(a.ContainerID, a.Grace, func(error) { w.after(0, func() { own.finish(f, nil, nil) }) })
	case podlife.RunHook:
		own.runHook(f, a)
	case podlife.RunProbe:
		if w.chance(w.fault / 10) {
			f.undo = w.after(w.upTo(200*time.Millisecond),
				func() { own.finish(f, failure("", "the probe cannot be run"), nil) })
			return
		}
		f.undo = w.after(w.upTo(200*time.Millisecond), func() { own.finishProbe(f, a) })
	default:
		delay := w.upTo(50 * time.Millisecond)
		switch a.(type) {
		case podlife.PullImage:
			delay = w.upTo(5 * time.Second)
			if w.loop.now.Before(w.slow) {
				delay = w.upTo(10 * time.Minute)
			}
		case podlife.CreateSandbox, podlife.PrepareVolumes:
			delay = w.upTo(300 * time.Millisecond)
		}
		if w.chance(w.fault) {
			delay = w.upTo(20 * time.Second)
		}
		f.undo = w.after(delay, func() { own.effect(f) })
		f.orphan = func() {
			switch a.(type) {
			case podlife.AdmitResize:
				return // a call within the agent
			case podlife.DeletePod:
				if own.writing || own.wanted != nil || w.away() > 0 {
					return // not sent yet
				}
			}
			since := w.loop.now
			w.after(w.upTo(3*time.Second), func() {
				if !since.Before(w.late) {
					own.apply(a)
				}
			})
		}
	}
}

// effect lets an action take effect, with a fault before or after it.
func (own *owner) effect(f *flight) {
	w := own.w
	if f.done || own.dead {
		return
	}
	switch f.action.(type) {
	case podlife.DeletePod:
		if (own.writing || own.wanted != nil) && own.object.exists {
			f.undo = w.after(20*time.Millisecond, func() { own.effect(f) }) // after the last status is stored
			return
		}
		if w.away() > 0 {
			own.finish(f, failure("", "the API server is away"), nil)
			return
		}
	case podlife.AdmitResize: // no call of the runtime
	default:
		if w.silentFor() > 0 {
			own.finish(f, failure("", "the runtime does not answer"), nil)
			return
		}
	}
	if w.loop.now.Before(w.full) && writes(f.action) {
		own.finish(f, failure("", "no space left on device"), nil)
		return
	}
	if w.chance(w.fault / 2) {
		own.finish(f, w.failureOf(f.action), nil)
		return
	}
	if ofRuntime(f.action) && w.chance(w.fault/20) {
		if _, cgroup := f.action.(podlife.ResizePod); !cgroup { // done by the agent itself
			own.finish(f, nil, nil) // reports success without effect
			return
		}
	}
	fail, pulled := own.apply(f.action)
	if fail == nil && w.chance(w.fault/2) {
		fail = failure("", "fails after the effect")
	}
	own.finish(f, fail, pulled)
}

// ofRuntime reports whether an action is a call to the runtime, not to the API server or the node.
func ofRuntime(a podlife.Action) bool {
	switch a.(type) {
	case podlife.AdmitResize, podlife.DeletePod:
		return false
	}
	return true
}

// writes reports whether an action needs space on the disk.
func writes(a podlife.Action) bool {
	switch a.(type) {
	case podlife.PrepareVolumes, podlife.CreateSandbox, podlife.PullImage, podlife.StartContainer:
		return true
	}
	return false
}

// failureOf returns a failure before the effect, with the messages of the agent's executor.
func (w *world) failureOf(a podlife.Action) *podlife.Failure {
	const why = "fails before the effect"
	switch a.(type) {
	case podlife.PrepareVolumes:
		return failure([]string{"", "FailedMount", "FailedCreatePodContainer"}[w.rand.IntN(3)], why)
	case podlife.CreateSandbox:
		return failure([]string{"", "FailedPrepareDynamicResources"}[w.rand.IntN(2)], why)
	case podlife.PullImage:
		return failure([]string{"", "ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed",
			"InvalidImageName"}[w.rand.IntN(5)], why)
	case podlife.StartContainer:
		return failure([]string{"", "CreateContainerConfigError", "CreateContainerError"}[w.rand.IntN(3)], why)
	case podlife.Resize:
		return failure("ResizePodInPlaceError", why)
	}
	return failure("", why)
}

// cancel aborts an action; it may be too late.
func (own *owner) cancel(k podlife.Key) {
	w := own.w
	i := slices.IndexFunc(own.flights, func(f *flight) bool { return f.key == k && !f.done })
	if i < 0 {
		return
	}
	f := own.flights[i]
	f.cancelled = true
	w.logf("%s cancel %s", own.pod.Name, k)
	if f.undo != nil {
		f.undo()
	}
	if f.orphan != nil && w.chance(0.3) {
		w.after(0, func() { own.apply(f.action) }) // not in the middle of a Step: its effect may cause another
	}
	own.finish(f, failure(podlife.Aborted, "aborted"), nil)
}

// finish reports the outcome of an action after a new snapshot of the runtime.
func (own *owner) finish(f *flight, fail *podlife.Failure, pulled *podlife.Pulled) {
	w := own.w
	if f.done {
		return
	}
	f.done = true
	if r, ok := f.action.(podlife.RunHook); ok && r.Kind == podlife.PreStop {
		for i := range own.hooks {
			if own.hooks[i].id == r.ContainerID {
				own.hooks[i].ended = true
			}
		}
	}
	delay := w.upTo(5 * time.Millisecond)
	if w.chance(w.fault) {
		delay = w.upTo(2 * time.Second)
	}
	w.after(delay, func() {
		if own.dead {
			return
		}
		own.flights = slices.DeleteFunc(own.flights, func(o *flight) bool { return o == f })
		own.stale = true
		text := "ok"
		if fail != nil {
			text = fail.Reason + " " + fail.Message
		}
		w.logf("%s end %s: %s", own.pod.Name, f.key, text)
		if fail != nil && fail.Reason != podlife.Aborted {
			own.failures = append(own.failures, failed{f.key, w.loop.now})
		}
		own.done = append(own.done, podlife.Outcome{Key: f.key, At: w.now(), Err: fail, Pulled: pulled})
		own.step()
	})
}

func (own *owner) finishProbe(f *flight, a podlife.RunProbe) {
	w := own.w
	if f.done || own.dead {
		return
	}
	f.done = true
	own.flights = slices.DeleteFunc(own.flights, func(o *flight) bool { return o == f })
	verdict := w.verdict(own.object, a)
	w.logf("%s probe %s of %s: %s", own.pod.Name, a.Type, a.Container, verdict)
	own.probes = append(own.probes,
		podlife.ProbeResult{Key: f.key, Container: a.Container, ContainerID: a.ContainerID, Type: a.Type,
			At: w.now(), Verdict: verdict, Output: "probe output"})
	if verdict != podlife.ProbeSuccess || own.wake.IsZero() || own.wake.After(a.Steady) {
		own.step()
	}
}

func (own *owner) runHook(f *flight, a podlife.RunHook) {
	w := own.w
	length := w.upTo(5 * time.Second)
	if a.Kind == podlife.PreStop {
		length = w.upTo(20 * time.Second)
		own.hooks = append(own.hooks, hook{id: a.ContainerID, until: w.loop.now.Add(a.Timeout)})
	}
	var fail *podlife.Failure
	if w.chance(0.1) {
		fail = failure("", "the hook failed")
	}
	if a.Timeout > 0 && length > a.Timeout {
		length, fail = a.Timeout, failure("", "the hook took too long")
	}
	f.undo = w.after(length, func() { own.finish(f, fail, nil) })
}

func failure(reason, message string) *podlife.Failure {
	return &podlife.Failure{Reason: reason, Message: message}
}

// apply applies the effect of an action.
func (own *owner) apply(a podlife.Action) (*podlife.Failure, *podlife.Pulled) {
	w, uid := own.w, own.pod.UID
	var err error
	switch a := a.(type) {
	case podlife.PrepareVolumes:
		if w.joined != nil && w.joined.mount != nil && w.joined.mount(own.pod) != nil {
			return failure("FailedMount", "a claim is not ready"), nil
		}
		w.mounts++
		w.volumes[uid] = podlife.VolumeState{Mounted: true, Present: true}
		w.groups[uid] = groupOf(own.runs)
	case podlife.RemoveVolumes:
		w.checkNothingRuns(own.object, "", "volumes are removed")
		w.mounts++
		w.volumes[uid] = podlife.VolumeState{}
		delete(w.groups, uid)
	case podlife.CreateSandbox:
		network := cri.NamespaceMode_POD
		if own.pod.Spec.HostNetwork {
			network = cri.NamespaceMode_NODE
		}
		_, err = w.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{
			Linux: &cri.LinuxPodSandboxConfig{
				SecurityContext: &cri.LinuxSandboxSecurityContext{
					NamespaceOptions: &cri.NamespaceOption{Network: network}}},
			Metadata: &cri.PodSandboxMetadata{Name: own.pod.Name, Namespace: own.pod.Namespace, Uid: string(uid),
				Attempt: a.Attempt},
			Labels: map[string]string{uidLabel: string(uid)}}})
	case podlife.PullImage:
		return own.pull(a)
	case podlife.StartContainer:
		return own.startContainer(a), nil
	case podlife.AdmitResize:
		return w.admitResize(own, own.pod), nil
	case podlife.ResizePod:
		own.resizeGroup(a)
	case podlife.Resize:
		err = own.resize(a)
	case podlife.RemoveContainer:
		w.checkNotRunning(own.object, a.ContainerID)
		if a.Logs {
			own.removeLog(a)
		}
		_, err = w.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: a.ContainerID})
	case podlife.StopSandbox:
		w.checkNothingRuns(own.object, a.SandboxID, "its sandbox is stopped")
		_, err = w.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: a.SandboxID})
	case podlife.RemoveSandbox:
		_, err = w.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: a.SandboxID})
	case podlife.DeletePod:
		w.deleteFromNode(own.object)
	}
	if err != nil {
		return failure("", err.Error()), nil
	}
	return nil, nil
}

func (own *owner) pull(a podlife.PullImage) (*podlife.Failure, *podlife.Pulled) {
	switch strings.TrimRight(a.Image, "+") {
	case badImage:
		return failure("InvalidImageName", "invalid reference format"), nil
	case absentImage:
		return failure("ErrImagePull", "not found"), nil
	}
	if _, err := own.w.runtime.PullImage(ctx,
		&cri.PullImageRequest{Image: &cri.ImageSpec{Image: a.Image}}); err != nil {
		return failure("ErrImagePull", err.Error()), nil
	}
	own.object.container(a.Container).pulled = true
	own.w.imageCame(a.Image)
	own.w.agent.imagesChanged()
	return nil, &podlife.Pulled{Ref: "sha256:" + a.Image, Size: 1 << 20, Took: 1234567 * time.Nanosecond,
		Waited: 2 * time.Second}
}

// resizeGroup sets the limits of the pod's cgroup (L3.125).
func (own *owner) resizeGroup(a podlife.ResizePod) {
	w, uid := own.w, own.pod.UID
	g := groupOf(own.runs)
	if a.Widen {
		have := w.groups[uid]
		g = group{widest(have.cpu, g.cpu), widest(have.memory, g.memory)}
	}
	w.groups[uid] = g
	w.mounts++
}

func (own *owner) resize(a podlife.Resize) error {
	c, _, _ := containerOf(own.runs, a.Container)
	if c == nil {
		return fmt.Errorf("container %s is not in the pod any more", a.Container)
	}
	sized := *c
	sized.Resources = a.Resources
	l := limitsOf(own.runs, &sized)
	own.w.checkResize(own, a, l)
	if own.cache.stale == nil {
		own.cache.stale = map[string]bool{}
	}
	own.cache.stale[a.ContainerID] = true
	_, err := own.w.runtime.UpdateContainerResources(ctx,
		&cri.UpdateContainerResourcesRequest{ContainerId: a.ContainerID, Linux: l})
	return err
}

// limitsOf returns the cgroup values of a container (L3.117j).
func limitsOf(p *corev1.Pod, c *corev1.Container) *cri.LinuxContainerResources {
	g := resources.ContainerCgroup(p, c)
	l := &cri.LinuxContainerResources{CpuShares: int64(g.CPUShares), CpuQuota: g.CPUQuota, MemoryLimitInBytes: g.Memory}
	if g.CPUQuota > 0 {
		l.CpuPeriod = 100000
	}
	return l
}

func (own *owner) startContainer(a podlife.StartContainer) *podlife.Failure {
	w, uid := own.w, own.pod.UID
	image := strings.TrimPrefix(a.ImageRef, "sha256:")
	w.checkStart(own, a)
	config := &cri.ContainerConfig{
		Metadata:    &cri.ContainerMetadata{Name: a.Container, Attempt: uint32(a.Attempt)},
		Image:       &cri.ImageSpec{Image: image},
		Labels:      map[string]string{uidLabel: string(uid)},
		Annotations: map[string]string{"hash": podlife.DefinitionHash(a.Container, image)}}
	if c, _, _ := containerOf(own.runs, a.Container); c != nil {
		config.Linux = &cri.LinuxContainerConfig{Resources: limitsOf(own.runs, c)}
	}
	resp, err := w.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: a.SandboxID, Config: config})
	if err != nil {
		return failure("CreateContainerError", err.Error())
	}
	own.made = append(own.made, resp.ContainerId)
	if t := own.object.container(a.Container); !slices.Contains(t.logs, a.Attempt) {
		t.logs = append(t.logs, a.Attempt)
	}
	if w.chance(w.fault / 4) {
		return &podlife.Failure{Reason: "RunContainerError", Message: "the start was lost", Created: true}
	}
	w.containerStarts(own, a, resp.ContainerId)
	if _, err := w.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: resp.ContainerId}); err != nil {
		return &podlife.Failure{Reason: "RunContainerError", Message: err.Error(), Created: true}
	}
	w.result.Starts++
	return nil
}

// removeLog removes the log of an instance with it.
func (own *owner) removeLog(a podlife.RemoveContainer) {
	for _, c := range own.observed.Containers {
		if c.ID == a.ContainerID {
			t := own.object.container(a.Container)
			t.logs = slices.DeleteFunc(slices.Clone(t.logs), func(n int) bool { return n == c.Attempt })
		}
	}
}

// verdict is the result of a probe: some instances always fail, others sometimes.
func (w *world) verdict(o *object, a podlife.RunProbe) podlife.ProbeVerdict {
	t := o.truth[a.Container]
	if t == nil || t.running != a.ContainerID {
		return podlife.ProbeError
	}
	bad := 0.05
	if t.failsProbes {
		bad = 0.8
	}
	v := podlife.ProbeSuccess
	switch {
	case w.chance(0.02):
		v = podlife.ProbeError
	case w.chance(0.02):
		v = podlife.ProbeWarning
	case w.chance(bad):
		v = podlife.ProbeFailure
	}
	w.probed(o, t, a, v)
	return v
}

func containerOf(p *corev1.Pod, name string) (c *corev1.Container, index int, init bool) {
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == name {
			return &p.Spec.InitContainers[i], i, true
		}
	}
	for i := range p.Spec.Containers {
		if p.Spec.Containers[i].Name == name {
			return &p.Spec.Containers[i], i, false
		}
	}
	return nil, 0, false
}
