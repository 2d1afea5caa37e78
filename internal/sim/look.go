package sim

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
)

// memory is what an owner remembers of the runtime, as package observe does: a status
// is read again only when its state changed, or when somebody asked for that.
type memory struct {
	sandboxes  map[string]podlife.Sandbox
	containers map[string]podlife.Container
	stale      map[string]bool // containers to be read again
}

// sight tells whether the world has changed since one looked.
type sight struct {
	runtime    uint64
	mounts     uint64
	generation int64
}

// deafFor tells how long the runtime does not answer.
func (w *world) deafFor() time.Duration { return max(0, w.deaf.Sub(w.loop.now)) }

// look gathers what the runtime has of the pod; false when nothing has changed on the machine.
func (own *owner) look() bool {
	w := own.w
	now := sight{w.runtime.Changes(), w.mounts, own.pod.Generation}
	if now == own.seen && !own.observed.Taken.IsZero() {
		own.observed.Taken = w.now()
		return false
	}
	first := own.observed.Taken.IsZero()
	own.seen = now
	o := podlife.Observed{Taken: w.now(), Volumes: w.volumes[own.pod.UID]}
	sandboxes, items := own.list()
	for _, s := range sandboxes {
		ready := s.State == cri.PodSandboxState_SANDBOX_READY
		if x, known := own.memory.sandboxes[s.Id]; known && (x.Ready || !ready) {
			x.Ready = ready
			o.Sandboxes = append(o.Sandboxes, x)
			continue
		}
		st, err := w.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.Id})
		if err != nil {
			continue
		}
		x := podlife.Sandbox{ID: s.Id, Attempt: s.Metadata.Attempt, CreatedAt: time.Unix(0, s.CreatedAt), Ready: ready,
			HostNetwork: st.Status.GetLinux().GetNamespaces().GetOptions().GetNetwork() == cri.NamespaceMode_NODE}
		if ip := st.Status.Network.Ip; ip != "" {
			x.IPs = []string{ip}
		}
		for _, ip := range st.Status.Network.AdditionalIps {
			x.IPs = append(x.IPs, ip.Ip)
		}
		o.Sandboxes = append(o.Sandboxes, x)
	}
	slices.SortStableFunc(o.Sandboxes, func(a, b podlife.Sandbox) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt))
	})
	for _, c := range items {
		if x, known := own.memory.containers[c.Id]; known && !own.memory.stale[c.Id] && x.State == stateOf(c.State) {
			o.Containers = append(o.Containers, x)
			continue
		}
		if resp, err := w.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id}); err == nil {
			o.Containers = append(o.Containers, containerSeen(c, resp.Status))
		}
	}
	slices.SortStableFunc(o.Containers, func(a, b podlife.Container) int {
		return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), a.CreatedAt.Compare(b.CreatedAt))
	})
	own.remember(&o)
	if first {
		o.Logs = own.leftLogs(o.Containers)
		own.logs = o.Logs
	}
	for _, c := range containers(own.pod) {
		o.Images = append(o.Images, w.imageState(c.Image))
	}
	for _, c := range own.pod.Spec.EphemeralContainers {
		o.Images = append(o.Images, w.imageState(c.Image))
	}
	own.observed = o
	return true
}

func (own *owner) remember(o *podlife.Observed) {
	own.memory = memory{sandboxes: map[string]podlife.Sandbox{}, containers: map[string]podlife.Container{}}
	for _, s := range o.Sandboxes {
		own.memory.sandboxes[s.ID] = s
	}
	for _, c := range o.Containers {
		own.memory.containers[c.ID] = c
	}
}

// leftLogs are the newest logs of containers that the runtime has nothing of.
func (own *owner) leftLogs(here []podlife.Container) (left []podlife.LogFile) {
	for _, c := range containers(own.pod) {
		if slices.ContainsFunc(here, func(x podlife.Container) bool { return x.Name == c.Name }) {
			continue
		}
		if all := own.object.container(c.Name).logs; len(all) > 0 {
			left = append(left, podlife.LogFile{Container: c.Name, Attempt: slices.Max(all)})
		}
	}
	return left
}

// listedAnew tells whether a list of the whole runtime differs from what was looked
// at last, as far as a list shows it.
func (own *owner) listedAnew() bool {
	sandboxes, items := own.w.list(own.pod.UID)
	o := &own.observed
	return len(sandboxes) != len(o.Sandboxes) || len(items) != len(o.Containers) ||
		slices.ContainsFunc(sandboxes, func(s *cri.PodSandbox) bool {
			return !slices.ContainsFunc(o.Sandboxes, func(x podlife.Sandbox) bool {
				return x.ID == s.Id && x.Ready == (s.State == cri.PodSandboxState_SANDBOX_READY)
			})
		}) ||
		slices.ContainsFunc(items, func(c *cri.Container) bool {
			return !slices.ContainsFunc(o.Containers,
				func(x podlife.Container) bool { return x.ID == c.Id && x.State == stateOf(c.State) })
		})
}

// list is what the runtime lists of the pod; a list may have a gap. What is expected
// is asked for by its id then, as package observe does, so a gap can only hide what
// this agent never heard of.
func (own *owner) list() ([]*cri.PodSandbox, []*cri.Container) {
	w := own.w
	sandboxes, containers := w.list(own.pod.UID)
	own.gap = false
	if all := len(sandboxes) + len(containers); all > 0 && w.chance(w.fault/2) {
		own.seen = sight{} // the next list has it
		if i := w.rand.IntN(all); i < len(sandboxes) {
			if !own.expectsSandbox(sandboxes[i].Id) {
				w.logf("%s the list misses %s", own.pod.Name, sandboxes[i].Id)
				sandboxes, own.gap = slices.Delete(sandboxes, i, i+1), true
			}
		} else if i -= len(sandboxes); !own.expects(containers[i].Id) {
			w.logf("%s the list misses %s", own.pod.Name, containers[i].Id)
			containers, own.gap = slices.Delete(containers, i, i+1), true
		}
	}
	return sandboxes, containers
}

func (own *owner) expectsSandbox(id string) bool {
	return slices.ContainsFunc(own.observed.Sandboxes, func(s podlife.Sandbox) bool { return s.ID == id })
}

// expects tells whether the agent saw a container, made it or finds it in the pod's status.
func (own *owner) expects(id string) bool {
	if slices.Contains(own.made, id) ||
		slices.ContainsFunc(own.observed.Containers, func(c podlife.Container) bool { return c.ID == id }) {
		return true
	}
	st := &own.pod.Status
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses,
		st.EphemeralContainerStatuses} {
		if slices.ContainsFunc(list,
			func(c corev1.ContainerStatus) bool { return c.ContainerID == runtimeName+"://"+id }) {
			return true
		}
	}
	return false
}

func containerSeen(c *cri.Container, st *cri.ContainerStatus) podlife.Container {
	x := podlife.Container{ID: c.Id, Name: c.Metadata.Name, Attempt: int(c.Metadata.Attempt), SandboxID: c.PodSandboxId,
		CreatedAt: time.Unix(0, c.CreatedAt), ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
		Image: st.Image.Image, ImageRef: st.ImageRef, Hash: st.Annotations["hash"]}
	if st.StartedAt != 0 {
		x.StartedAt = time.Unix(0, st.StartedAt).UTC()
	}
	if st.FinishedAt != 0 {
		x.FinishedAt = time.Unix(0, st.FinishedAt).UTC()
	}
	if l := st.GetResources().GetLinux(); l != nil {
		x.Resources = resourcesOf(l.CpuQuota, l.CpuShares, l.MemoryLimitInBytes)
	}
	x.State = stateOf(st.State)
	return x
}

func stateOf(s cri.ContainerState) podlife.ContainerState {
	switch s {
	case cri.ContainerState_CONTAINER_CREATED:
		return podlife.ContainerCreated
	case cri.ContainerState_CONTAINER_RUNNING:
		return podlife.ContainerRunning
	case cri.ContainerState_CONTAINER_EXITED:
		return podlife.ContainerExited
	default:
		return podlife.ContainerUnknown
	}
}

// Images that are trouble by their names.
const (
	badImage    = "Bad Name"  // no image name at all (L3.102)
	brokenImage = "broken"    // the look-up fails (L3.104)
	absentImage = "forgotten" // nobody can pull it
)

// image draws the image of a container.
func (w *world) image() string {
	return []string{"image0", "image1", "image2"}[w.rand.IntN(3)]
}

func (w *world) imageState(name string) podlife.ImageState {
	i := podlife.ImageState{Image: name}
	switch strings.TrimRight(name, "+") {
	case badImage:
		i.InvalidName = "invalid reference format"
		return i
	case brokenImage:
		if !w.healed {
			i.Err = "input/output error"
			return i
		}
	}
	resp, _ := w.runtime.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if resp.Image != nil {
		i.Ref = resp.Image.Id
	}
	return i
}

// troubled tells a container whose image is not here, and does not come by itself.
func (w *world) troubled(c *corev1.Container) bool {
	name := strings.TrimRight(c.Image, "+")
	lacks := w.imageState(c.Image).Ref == ""
	switch {
	case name == badImage:
		return true
	case c.ImagePullPolicy == corev1.PullAlways:
		return name == absentImage
	}
	return lacks && (name == brokenImage || name == absentImage || c.ImagePullPolicy == corev1.PullNever)
}

// bring lets somebody bring an image to the machine that a pod names, or mend the disk
// that it lies on. The agent is told late, twice or never.
func (w *world) bring() {
	var names []string
	for _, o := range w.pods {
		for _, c := range containers(o.pod) {
			if o.exists && c.Image != badImage {
				names = append(names, c.Image)
			}
		}
	}
	if len(names) == 0 {
		return
	}
	name := names[w.rand.IntN(len(names))]
	if strings.HasPrefix(name, brokenImage) {
		w.healed = true
	}
	w.logf("somebody brings image %s", name)
	if _, err := w.runtime.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: name}}); err != nil {
		return
	}
	w.imageCame(name)
	for range w.rand.IntN(3) {
		w.after(w.upTo(5*time.Second), w.agent.imagesChanged)
	}
}

// imageCame begins to watch the containers that an image is here for.
func (w *world) imageCame(name string) {
	if !w.clean {
		return
	}
	w.after(lookWithin, func() {
		if w.imageState(name).Ref == "" {
			return // it can't be read
		}
		for _, own := range w.agent.owners {
			if own.stage != podlife.Syncing || !slices.ContainsFunc(own.waits, func(x podlife.Wait) bool {
				return x.For == "image" && x.Object == name && w.now().Sub(x.Since) >= lookWithin
			}) {
				continue
			}
			for _, c := range containers(own.pod) {
				if c.Image == name && c.ImagePullPolicy == corev1.PullAlways {
					return // that one waits for the registry
				}
			}
			w.broken(imageUsed, own.pod.Name, "%s is here since %v", name, lookWithin)
		}
	})
}

// lookWithin is how soon an image that is here is used: a look comes every ten
// seconds, and a pull that was begun before takes five.
const lookWithin = 16 * time.Second
