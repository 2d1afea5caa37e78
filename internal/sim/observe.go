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

// statusCache is an owner's cache of the runtime, like package observe: it reads a status again
// only if the container's state changed, or on request.
type statusCache struct {
	sandboxes  map[string]podlife.Sandbox
	containers map[string]podlife.Container
	stale      map[string]bool // containers to read again
}

// sight detects whether the runtime has changed since the last snapshot.
type sight struct {
	runtime    uint64
	mounts     uint64
	generation int64
	healed     bool // an image can be read again that is there as before
}

// silentFor returns for how long the runtime will not answer.
func (w *world) silentFor() time.Duration { return max(0, w.silent.Sub(w.loop.now)) }

// look takes a snapshot of the pod in the runtime. It returns false if nothing changed on the machine.
func (own *owner) look() bool {
	w := own.w
	now := sight{w.runtime.Changes(), w.mounts, own.pod.Generation, w.healed}
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
		if x, known := own.cache.sandboxes[s.Id]; known && (x.Ready || !ready) {
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
		if x, known := own.cache.containers[c.Id]; known && !own.cache.stale[c.Id] && x.State == stateOf(c.State) {
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
	own.record(&o)
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

func (own *owner) record(o *podlife.Observed) {
	own.cache = statusCache{sandboxes: map[string]podlife.Sandbox{}, containers: map[string]podlife.Container{}}
	for _, s := range o.Sandboxes {
		own.cache.sandboxes[s.ID] = s
	}
	for _, c := range o.Containers {
		own.cache.containers[c.ID] = c
	}
}

// leftLogs returns the newest log files of containers that the runtime does not have.
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

// listedAnew reports whether a list of the whole runtime differs from the last one.
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

// list returns the pod's sandboxes and containers in the runtime. A list may be incomplete: expected containers are
// then read by their IDs, as in package observe, so only containers that this agent has never seen can be missing.
func (own *owner) list() ([]*cri.PodSandbox, []*cri.Container) {
	w := own.w
	sandboxes, containers := w.list(own.pod.UID)
	again := own.gap // no known runtime omits something from two lists
	own.gap = false
	if all := len(sandboxes) + len(containers); all > 0 && w.chance(w.fault/2) && !again {
		own.seen = sight{} // the next list contains it
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

// expects reports whether the agent saw a container, created it, or finds it in the pod's status.
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

// Images whose names cause trouble.
const (
	badImage    = "Bad Name"  // invalid image name (L3.102)
	brokenImage = "broken"    // the lookup fails (L3.104)
	absentImage = "forgotten" // no pull succeeds
)

// image picks the image of a container at random.
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

// troubled reports whether a container's image is missing and will not be pulled.
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

// bring loads an image of a pod onto the machine, or repairs the disk that it is on. The agent is
// notified late, twice, or never.
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
	w.logf("image %s arrives from outside", name)
	if _, err := w.runtime.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: name}}); err != nil {
		return
	}
	w.imageCame(name)
	for range w.rand.IntN(3) {
		w.after(w.upTo(5*time.Second), w.agent.imagesChanged)
	}
}

// imageCame starts the check of the containers whose image has become present.
func (w *world) imageCame(name string) {
	if !w.clean {
		return
	}
	w.after(lookWithin, func() {
		if w.imageState(name).Ref == "" {
			return // it cannot be read
		}
		for _, own := range w.agent.owners {
			if own.stage != podlife.Syncing || !slices.ContainsFunc(own.waits, func(x podlife.Wait) bool {
				return x.For == "image" && x.Object == name && w.now().Sub(x.Since) >= lookWithin
			}) {
				continue
			}
			for _, c := range containers(own.pod) {
				if c.Image == name && c.ImagePullPolicy == corev1.PullAlways {
					return // that container waits for the registry
				}
			}
			w.broken(imageUsed, own.pod.Name, "%s is here since %v", name, lookWithin)
		}
	})
}

// lookWithin is how soon a present image is used: a snapshot is taken every ten seconds, and an
// earlier pull takes five.
const lookWithin = 16 * time.Second
