// Package observe reads the runtime's state for the node agent: Look takes a snapshot of one pod, Watcher reports which
// pods have changed.
//
// A snapshot costs two list calls and a status call for each object whose state changed: finished containers and ready
// sandboxes are cached. If a list lacks an object that the last snapshot had, that a start just created, or that the
// pod's status names, the object is requested by its ID before it counts as gone: an incomplete list must not start a
// container twice. The package must never change anything in the runtime and never decide anything about a pod.
//
// Contract: docs/spec/pod-lifecycle.md.
package observe

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	"carob/internal/node/spec"
)

// Label of the runtime's objects that names the pod (L3.164).
const uidLabel = "io.kubernetes.pod.uid"

// Runtime are the calls of a runtime that a snapshot needs.
type Runtime interface {
	ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error)
	PodSandboxStatus(context.Context, *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error)
	ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error)
	ContainerStatus(context.Context, *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error)
	ContainerEvents(ctx context.Context, emit func(*cri.ContainerEventResponse)) error
}

// Config is what an Observer uses in addition to the runtime.
type Config struct {
	Runtime Runtime
	Image   func(ctx context.Context, pod *corev1.Pod, image string) podlife.ImageState
	Volumes func(pod *corev1.Pod) podlife.VolumeState
	Devices func(pod *corev1.Pod) podlife.DeviceState // nil: the node has none
	// OwnCPUs is how many CPUs a container has for itself: they are its limit, and its cgroup has none (S10.7). Nil: no
	// container has any.
	OwnCPUs func(pod types.UID, container string) int
	// TerminationMessage reads the file of that path on the host (L3.150).
	TerminationMessage func(path string) (string, error)
	// LogTail reads the end of a container log (L3.151).
	LogTail func(path string, lines int, bytes int64) (string, error)
	// NewestLog is the restart count in the name of the newest log file of a container
	// (L3.88); ok is false when it left none. Nil: not read.
	NewestLog func(pod *corev1.Pod, container string) (attempt int, ok bool, err error)
	// LogPath is called with the log path of a running container; nil: not called.
	LogPath func(containerID, path string, running bool)
}

// Observer takes snapshots. It is safe for concurrent use.
type Observer struct {
	cfg Config

	mu   sync.Mutex
	pods map[types.UID]*podCache
}

// podCache is the state of one pod from earlier snapshots.
type podCache struct {
	mu         sync.Mutex // held while a snapshot is taken
	sandboxes  map[string]podlife.Sandbox
	containers map[string]known
	states     states
}

// known is a container whose status was read when it was in state.
type known struct {
	item    *cri.Container
	state   cri.ContainerState
	stale   bool // must be read again
	c       podlife.Container
	logPath string
}

// states is the outline of a pod in the runtime: the state of each id.
type states map[string]int32

// The states of sandboxes are stored separately from those of containers.
const sandboxStates = 100

// New returns an Observer with an empty cache.
func New(cfg Config) *Observer {
	return &Observer{cfg: cfg, pods: map[types.UID]*podCache{}}
}

// Forget removes a pod from the cache.
func (o *Observer) Forget(uid types.UID) {
	o.mu.Lock()
	m := o.pods[uid]
	delete(o.pods, uid)
	o.mu.Unlock()
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, k := range m.containers {
		o.logEnds(id, k)
	}
}

// logEnds announces that the log of a container that ran is complete.
func (o *Observer) logEnds(id string, k known) {
	if o.cfg.LogPath != nil && k.logPath != "" && k.state == cri.ContainerState_CONTAINER_RUNNING {
		o.cfg.LogPath(id, k.logPath, false)
	}
}

// Refresh makes the next snapshot read the status of the container again.
func (o *Observer) Refresh(uid types.UID, containerID string) {
	m := o.cache(uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	if k, ok := m.containers[containerID]; ok {
		k.stale = true
		m.containers[containerID] = k
	}
}

// Made records that the runtime created a container in a sandbox: a list without it is
// incomplete.
func (o *Observer) Made(uid types.UID, sandboxID, containerID string) {
	m := o.cache(uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expect(sandboxID, containerID)
}

// expect adds a container to the cache that no snapshot has had so far.
func (m *podCache) expect(sandboxID, containerID string) {
	if _, ok := m.containers[containerID]; !ok {
		m.containers[containerID] = known{item: &cri.Container{Id: containerID, PodSandboxId: sandboxID}, stale: true}
	}
}

// expectPublished adds the containers of a status that an earlier agent published.
func (m *podCache) expectPublished(st *corev1.PodStatus) {
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses,
		st.EphemeralContainerStatuses} {
		for i := range list {
			if _, id, ok := strings.Cut(list[i].ContainerID, "://"); ok {
				m.expect("", id)
			}
		}
	}
}

// LogPath is the path of the container's log, if the container was ever observed.
func (o *Observer) LogPath(uid types.UID, containerID string) string {
	m := o.cache(uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.containers[containerID].logPath
}

// RunningID is the ID of the running instance of a container in the last snapshot, or empty.
func (o *Observer) RunningID(uid types.UID, container string) string {
	m := o.cache(uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, k := range m.containers {
		if k.c.Name == container && k.c.State == podlife.ContainerRunning {
			return id
		}
	}
	return ""
}

// SandboxID is the ID of the newest ready sandbox in the last snapshot, or empty.
func (o *Observer) SandboxID(uid types.UID) string {
	m := o.cache(uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	var newest podlife.Sandbox
	for _, sb := range m.sandboxes {
		if sb.Ready && (newest.ID == "" || byAge(newest, sb) < 0) {
			newest = sb
		}
	}
	return newest.ID
}

func (o *Observer) cache(uid types.UID) *podCache {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.pods[uid]
	if m == nil {
		m = &podCache{sandboxes: map[string]podlife.Sandbox{}, containers: map[string]known{}}
		o.pods[uid] = m
	}
	return m
}

// Look returns a snapshot of the pod that is not older than the call.
func (o *Observer) Look(ctx context.Context, pod *corev1.Pod) (podlife.Observed, error) {
	m := o.cache(pod.UID)
	m.mu.Lock()
	defer m.mu.Unlock()

	first := m.states == nil
	if first {
		m.expectPublished(&pod.Status)
	}
	seen := podlife.Observed{Taken: time.Now()}
	mine := map[string]string{uidLabel: string(pod.UID)}
	sandboxes, err := o.cfg.Runtime.ListPodSandbox(ctx,
		&cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: mine}})
	if err != nil {
		return seen, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := o.cfg.Runtime.ListContainers(ctx,
		&cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: mine}})
	if err != nil {
		return seen, fmt.Errorf("list containers: %w", err)
	}
	allSandboxes, err := o.unlistedSandboxes(ctx, m, sandboxes.Items)
	if err != nil {
		return seen, err
	}
	allContainers, err := o.unlistedContainers(ctx, m, containers.Containers)
	if err != nil {
		return seen, err
	}
	if seen.Sandboxes, err = o.sandboxes(ctx, m, allSandboxes); err != nil {
		return seen, err
	}
	if seen.Containers, err = o.containers(ctx, m, allContainers); err != nil {
		return seen, err
	}
	if first {
		if seen.Logs, err = o.logFiles(pod, seen.Containers); err != nil {
			return seen, err
		}
	}
	m.states = outline(allSandboxes, allContainers)
	for _, image := range imagesOf(pod) {
		seen.Images = append(seen.Images, o.cfg.Image(ctx, pod, image))
	}
	seen.Volumes = o.cfg.Volumes(pod)
	if o.cfg.Devices != nil {
		seen.Devices = o.cfg.Devices(pod)
	}
	if o.cfg.OwnCPUs != nil {
		for i := range seen.Containers {
			c := &seen.Containers[i]
			c.Resources = limitedBy(o.cfg.OwnCPUs(pod.UID, c.Name), c.Resources)
		}
	}
	return seen, ctx.Err()
}

// logFiles finds the log files of containers that the runtime no longer has.
func (o *Observer) logFiles(pod *corev1.Pod, here []podlife.Container) (found []podlife.LogFile, err error) {
	if o.cfg.NewestLog == nil {
		return nil, nil
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			name := list[i].Name
			if slices.ContainsFunc(here, func(c podlife.Container) bool { return c.Name == name }) {
				continue
			}
			attempt, ok, err := o.cfg.NewestLog(pod, name)
			if err != nil {
				return nil, fmt.Errorf("find the logs of container %s: %w", name, err)
			}
			if ok {
				found = append(found, podlife.LogFile{Container: name, Attempt: attempt})
			}
		}
	}
	return found, nil
}

func outline(sandboxes []*cri.PodSandbox, containers []*cri.Container) states {
	s := make(states, len(sandboxes)+len(containers))
	for _, sb := range sandboxes {
		s[sb.Id] = sandboxStates + int32(sb.State)
	}
	for _, c := range containers {
		s[c.Id] = int32(c.State)
	}
	return s
}

// sameOutline reports whether the last snapshot of the pod had the same states.
func (o *Observer) sameOutline(uid types.UID, s states) bool {
	m := o.cache(uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.states != nil && maps.Equal(m.states, s)
}

// populated are the pods that had at least one object in the last snapshot.
func (o *Observer) populated() []types.UID {
	o.mu.Lock()
	all := maps.Clone(o.pods)
	o.mu.Unlock()
	var uids []types.UID
	for uid, m := range all {
		m.mu.Lock()
		if len(m.states) > 0 {
			uids = append(uids, uid)
		}
		m.mu.Unlock()
	}
	return uids
}

// unlistedSandboxes adds the sandboxes that exist although the list misses them.
func (o *Observer) unlistedSandboxes(ctx context.Context, m *podCache, items []*cri.PodSandbox) ([]*cri.PodSandbox,
	error) {
	for id, sb := range m.sandboxes {
		if slices.ContainsFunc(items, func(i *cri.PodSandbox) bool { return i.Id == id }) {
			continue
		}
		resp, err := o.cfg.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("status of sandbox %s, which is not listed any more: %w", id, err)
		}
		items = append(items, &cri.PodSandbox{Id: id, State: resp.GetStatus().GetState(),
			Metadata: &cri.PodSandboxMetadata{Attempt: sb.Attempt}, CreatedAt: sb.CreatedAt.UnixNano()})
	}
	return items, nil
}

// unlistedContainers adds the containers that exist although the list misses them.
func (o *Observer) unlistedContainers(ctx context.Context, m *podCache, items []*cri.Container) ([]*cri.Container,
	error) {
	for id, k := range m.containers {
		if slices.ContainsFunc(items, func(i *cri.Container) bool { return i.Id == id }) {
			continue
		}
		resp, err := o.cfg.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("status of container %s, which is not listed: %w", id, err)
		}
		if k.item.PodSandboxId == "" {
			return nil, fmt.Errorf("the runtime does not list container %s, which it knows", id)
		}
		st := resp.GetStatus()
		items = append(items, &cri.Container{Id: id, PodSandboxId: k.item.PodSandboxId, State: st.GetState(),
			CreatedAt: st.GetCreatedAt(), Image: st.GetImage(), Labels: st.GetLabels(),
			Annotations: st.GetAnnotations()})
	}
	return items, nil
}

func (o *Observer) sandboxes(ctx context.Context, m *podCache, items []*cri.PodSandbox) ([]podlife.Sandbox, error) {
	found := make([]podlife.Sandbox, 0, len(items))
	keep := make(map[string]podlife.Sandbox, len(items))
	for _, item := range items {
		ready := item.State == cri.PodSandboxState_SANDBOX_READY
		sb, known := m.sandboxes[item.Id]
		if !known || (ready && !sb.Ready) {
			resp, err := o.cfg.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: item.Id})
			if status.Code(err) == codes.NotFound {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("status of sandbox %s: %w", item.Id, err)
			}
			sb = sandboxOf(item, resp.Status)
		}
		sb.Ready = ready
		keep[item.Id] = sb
		found = append(found, sb)
	}
	m.sandboxes = keep
	slices.SortStableFunc(found, func(a, b podlife.Sandbox) int { return byAge(b, a) })
	return found, nil
}

// byAge orders the sandboxes of a pod, the oldest first. The attempt counts before
// the time: a clock that was set back makes a new sandbox look old.
func byAge(a, b podlife.Sandbox) int {
	return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), a.CreatedAt.Compare(b.CreatedAt))
}

func (o *Observer) containers(ctx context.Context, m *podCache, items []*cri.Container) ([]podlife.Container, error) {
	found := make([]podlife.Container, 0, len(items))
	keep := make(map[string]known, len(items))
	for _, item := range items {
		k, seen := m.containers[item.Id]
		if !seen || k.stale || k.state != item.State {
			resp, err := o.cfg.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: item.Id})
			if status.Code(err) == codes.NotFound {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("status of container %s: %w", item.Id, err)
			}
			k = known{item: item, state: resp.Status.State, c: containerOf(item, resp.Status),
				logPath: resp.Status.LogPath}
			if k.state == cri.ContainerState_CONTAINER_EXITED {
				k.c.Message = o.message(resp.Status, spec.Restore(item.Labels, item.Annotations))
			}
			if o.cfg.LogPath != nil && k.logPath != "" {
				o.cfg.LogPath(item.Id, k.logPath, k.state == cri.ContainerState_CONTAINER_RUNNING)
			}
		}
		keep[item.Id] = k
		found = append(found, k.c)
	}
	for id, k := range m.containers {
		if _, here := keep[id]; !here {
			o.logEnds(id, k) // it vanished, and its end was not observed
		}
	}
	m.containers = keep
	slices.SortStableFunc(found, func(a, b podlife.Container) int {
		return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), a.CreatedAt.Compare(b.CreatedAt)) // as byAge
	})
	return found, nil
}

// Limits of a message that is read from the log (L3.151).
const (
	logTailLines = 80
	logTailBytes = 2048
)

// message is the termination message of a container that ended (L3.150, L3.151). The container writes it: bytes that
// are no text are replaced, as by upstream's JSON, because clients that read the API as protobuf may refuse them.
func (o *Observer) message(s *cri.ContainerStatus, meta spec.Restored) string {
	text := ""
	for _, mount := range s.Mounts {
		if meta.TerminationMessagePath != "" && mount.ContainerPath == meta.TerminationMessagePath {
			var err error
			if text, err = o.cfg.TerminationMessage(mount.HostPath); err != nil {
				text = fmt.Sprintf("Error on reading termination log %s: %v", mount.HostPath, err)
			}
			break
		}
	}
	if text == "" && meta.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError &&
		s.ExitCode != 0 && s.Reason != "ContainerCannotRun" && s.LogPath != "" {
		if tail, err := o.cfg.LogTail(s.LogPath, logTailLines, logTailBytes); err == nil {
			text = tail
		} else {
			text = fmt.Sprintf("Error reading termination message from logs: %v", err)
		}
	}
	switch {
	case s.Message == "":
	case text == "":
		text = s.Message
	default:
		text = s.Message + ": " + text
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// imagesOf are the images that the pod names, each once.
func imagesOf(pod *corev1.Pod) []string {
	var images []string
	add := func(image string) {
		if image != "" && !slices.Contains(images, image) {
			images = append(images, image)
		}
	}
	for i := range pod.Spec.InitContainers {
		add(pod.Spec.InitContainers[i].Image)
	}
	for i := range pod.Spec.Containers {
		add(pod.Spec.Containers[i].Image)
	}
	for i := range pod.Spec.EphemeralContainers {
		add(pod.Spec.EphemeralContainers[i].Image)
	}
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil {
			add(v.Reference)
		}
	}
	return images
}
