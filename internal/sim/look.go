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
	own.seen = now
	o := podlife.Observed{Taken: w.now(), Volumes: w.volumes[own.pod.UID]}
	sandboxes, items := own.list()
	for _, s := range sandboxes {
		st, err := w.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.Id})
		if err != nil {
			continue
		}
		x := podlife.Sandbox{ID: s.Id, Attempt: s.Metadata.Attempt, CreatedAt: time.Unix(0, s.CreatedAt), Ready: s.State == cri.PodSandboxState_SANDBOX_READY,
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
		if resp, err := w.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id}); err == nil {
			o.Containers = append(o.Containers, containerSeen(c, resp.Status))
		}
	}
	slices.SortStableFunc(o.Containers, func(a, b podlife.Container) int {
		return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), a.CreatedAt.Compare(b.CreatedAt))
	})
	for _, c := range containers(own.pod) {
		o.Images = append(o.Images, w.imageState(c.Image))
	}
	for _, c := range own.pod.Spec.EphemeralContainers {
		o.Images = append(o.Images, w.imageState(c.Image))
	}
	own.observed = o
	return true
}

// list is what the runtime lists of the pod; a list may have a gap. What is expected
// is asked for by its id then, as package observe does, so a gap can only hide what
// this agent never heard of.
func (own *owner) list() ([]*cri.PodSandbox, []*cri.Container) {
	w := own.w
	sandboxes, containers := w.list(own.pod.UID)
	if all := len(sandboxes) + len(containers); all > 0 && w.chance(w.fault/2) {
		own.seen = sight{} // the next list has it
		if i := w.rand.IntN(all); i < len(sandboxes) {
			if !own.expectsSandbox(sandboxes[i].Id) {
				w.logf("%s the list misses %s", own.pod.Name, sandboxes[i].Id)
				sandboxes = slices.Delete(sandboxes, i, i+1)
			}
		} else if i -= len(sandboxes); !own.expects(containers[i].Id) {
			w.logf("%s the list misses %s", own.pod.Name, containers[i].Id)
			containers = slices.Delete(containers, i, i+1)
		}
	}
	return sandboxes, containers
}

func (own *owner) expectsSandbox(id string) bool {
	return slices.ContainsFunc(own.observed.Sandboxes, func(s podlife.Sandbox) bool { return s.ID == id })
}

// expects tells whether the agent saw a container, made it or finds it in the pod's status.
func (own *owner) expects(id string) bool {
	if slices.Contains(own.made, id) || slices.ContainsFunc(own.observed.Containers, func(c podlife.Container) bool { return c.ID == id }) {
		return true
	}
	st := &own.pod.Status
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		if slices.ContainsFunc(list, func(c corev1.ContainerStatus) bool { return c.ContainerID == runtimeName+"://"+id }) {
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
	switch st.State {
	case cri.ContainerState_CONTAINER_CREATED:
		x.State = podlife.ContainerCreated
	case cri.ContainerState_CONTAINER_RUNNING:
		x.State = podlife.ContainerRunning
	case cri.ContainerState_CONTAINER_EXITED:
		x.State = podlife.ContainerExited
	default:
		x.State = podlife.ContainerUnknown
	}
	return x
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
		i.Err = "input/output error"
		return i
	}
	resp, _ := w.runtime.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if resp.Image != nil {
		i.Ref = resp.Image.Id
	}
	return i
}

// troubled tells an image that never comes.
func troubled(c *corev1.Container) bool {
	switch strings.TrimRight(c.Image, "+") {
	case badImage, brokenImage, absentImage:
		return true
	}
	return c.ImagePullPolicy == corev1.PullNever
}
