package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/node/spec"
	"carob/internal/runtime"
)

// fakeRuntime is a container runtime in memory. Its containers run until they are
// stopped; a stubborn one only ends when its grace is over.
type fakeRuntime struct {
	runtime.Runtime // calls that no test makes panic

	noEvents    bool
	images      map[string]bool // by normalized name
	slowPull    map[string]time.Duration
	ignoresStop map[string]bool // by container name
	refuses     error           // a start
	starting    time.Duration   // what a start takes; cancelled in that time it ends the container
	down        bool
	gap         bool // lists have no containers
	away        bool // the registry

	mu         sync.Mutex
	n          int
	sandboxes  map[string]*cri.PodSandbox
	containers map[string]*fakeContainer
	emit       map[int]func(*cri.ContainerEventResponse)
	calls      map[string]int
}

type fakeContainer struct {
	cri.ContainerStatus
	sandbox string
	dead    chan struct{}
}

func newFakeRuntime() *fakeRuntime {
	return &fakeRuntime{
		images: map[string]bool{}, slowPull: map[string]time.Duration{}, ignoresStop: map[string]bool{},
		sandboxes: map[string]*cri.PodSandbox{}, containers: map[string]*fakeContainer{},
		emit: map[int]func(*cri.ContainerEventResponse){}, calls: map[string]int{},
	}
}

func (r *fakeRuntime) enter(call string) error {
	r.mu.Lock()
	r.calls[call]++
	if r.down {
		r.mu.Unlock()
		return status.Error(codes.Unavailable, "the runtime is down")
	}
	return nil
}

func notFound(id string) error { return status.Errorf(codes.NotFound, "%s not found", id) }

func (r *fakeRuntime) count(call string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[call]
}

func (r *fakeRuntime) event(sandbox string) {
	sb := r.sandboxes[sandbox]
	if sb == nil {
		return
	}
	for _, emit := range r.emit {
		go emit(&cri.ContainerEventResponse{PodSandboxStatus: &cri.PodSandboxStatus{Id: sb.Id, Metadata: sb.Metadata}})
	}
}

func (r *fakeRuntime) ContainerEvents(ctx context.Context, emit func(*cri.ContainerEventResponse)) error {
	if r.noEvents {
		return status.Error(codes.Unimplemented, "no events")
	}
	r.mu.Lock()
	r.n++
	id := r.n
	r.emit[id] = emit
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	delete(r.emit, id)
	r.mu.Unlock()
	return ctx.Err()
}

func (r *fakeRuntime) RunPodSandbox(_ context.Context, req *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse,
	error) {
	if err := r.enter("RunPodSandbox"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	r.n++
	id := "sandbox" + strconv.Itoa(r.n)
	r.sandboxes[id] = &cri.PodSandbox{
		Id: id, Metadata: req.Config.Metadata, State: cri.PodSandboxState_SANDBOX_READY,
		CreatedAt: time.Now().UnixNano(),
		Labels:    req.Config.Labels, Annotations: req.Config.Annotations, RuntimeHandler: req.RuntimeHandler,
	}
	r.event(id)
	return &cri.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (r *fakeRuntime) StopPodSandbox(_ context.Context, req *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse,
	error) {
	if err := r.enter("StopPodSandbox"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	sb := r.sandboxes[req.PodSandboxId]
	if sb == nil {
		return nil, notFound(req.PodSandboxId)
	}
	sb.State = cri.PodSandboxState_SANDBOX_NOTREADY
	for _, c := range r.containers {
		if c.sandbox == sb.Id {
			r.end(c, 137)
		}
	}
	r.event(sb.Id)
	return &cri.StopPodSandboxResponse{}, nil
}

func (r *fakeRuntime) RemovePodSandbox(_ context.Context,
	req *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	if err := r.enter("RemovePodSandbox"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	r.event(req.PodSandboxId)
	delete(r.sandboxes, req.PodSandboxId)
	maps.DeleteFunc(r.containers, func(_ string, c *fakeContainer) bool { return c.sandbox == req.PodSandboxId })
	return &cri.RemovePodSandboxResponse{}, nil
}

func (r *fakeRuntime) PodSandboxStatus(_ context.Context,
	req *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	if err := r.enter("PodSandboxStatus"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	sb := r.sandboxes[req.PodSandboxId]
	if sb == nil {
		return nil, notFound(req.PodSandboxId)
	}
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{
		Id: sb.Id, Metadata: sb.Metadata, State: sb.State, CreatedAt: sb.CreatedAt,
		Network: &cri.PodSandboxNetworkStatus{Ip: "10.0.0.7"},
	}}, nil
}

func selected(labels, want map[string]string) bool {
	for k, v := range want {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func (r *fakeRuntime) ListPodSandbox(_ context.Context, req *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse,
	error) {
	if err := r.enter("ListPodSandbox"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	resp := &cri.ListPodSandboxResponse{}
	for _, id := range slices.Sorted(maps.Keys(r.sandboxes)) {
		if sb := r.sandboxes[id]; selected(sb.Labels, req.GetFilter().GetLabelSelector()) {
			resp.Items = append(resp.Items, &cri.PodSandbox{
				Id: sb.Id, Metadata: sb.Metadata, State: sb.State, CreatedAt: sb.CreatedAt, Labels: sb.Labels,
				Annotations: sb.Annotations,
			})
		}
	}
	return resp, nil
}

func (r *fakeRuntime) CreateContainer(_ context.Context, req *cri.CreateContainerRequest) (*cri.CreateContainerResponse,
	error) {
	if err := r.enter("CreateContainer"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	r.n++
	id := "container" + strconv.Itoa(r.n)
	r.containers[id] = &fakeContainer{
		ContainerStatus: cri.ContainerStatus{
			Id: id, Metadata: req.Config.Metadata, State: cri.ContainerState_CONTAINER_CREATED,
			CreatedAt: time.Now().UnixNano(),
			Image:     req.Config.Image, ImageRef: req.Config.GetImage().GetImage(), Labels: req.Config.Labels,
			Annotations: req.Config.Annotations,
		},
		sandbox: req.PodSandboxId, dead: make(chan struct{}),
	}
	return &cri.CreateContainerResponse{ContainerId: id}, nil
}

func (r *fakeRuntime) StartContainer(ctx context.Context, req *cri.StartContainerRequest) (*cri.StartContainerResponse,
	error) {
	select {
	case <-ctx.Done():
	case <-time.After(r.starting):
	}
	if err := r.enter("StartContainer"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	c := r.containers[req.ContainerId]
	if c == nil {
		return nil, notFound(req.ContainerId)
	}
	if r.refuses != nil {
		r.end(c, 128)
		return nil, r.refuses
	}
	if err := ctx.Err(); err != nil {
		r.end(c, 137)
		return nil, status.FromContextError(err).Err()
	}
	c.State, c.StartedAt = cri.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	r.event(c.sandbox)
	return &cri.StartContainerResponse{}, nil
}

// end ends a container, with r.mu held.
func (r *fakeRuntime) end(c *fakeContainer, code int32) {
	if c.State != cri.ContainerState_CONTAINER_RUNNING {
		return
	}
	c.State, c.FinishedAt, c.ExitCode, c.Reason = cri.ContainerState_CONTAINER_EXITED, time.Now().UnixNano(), code,
		"Error"
	if code == 0 {
		c.Reason = "Completed"
	}
	close(c.dead)
	r.event(c.sandbox)
}

// exit ends the running instance of a container by itself.
func (r *fakeRuntime) exit(name string, code int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.Metadata.Name == name {
			r.end(c, code)
		}
	}
}

func (r *fakeRuntime) StopContainer(ctx context.Context, req *cri.StopContainerRequest) (*cri.StopContainerResponse,
	error) {
	if err := r.enter("StopContainer"); err != nil {
		return nil, err
	}
	c := r.containers[req.ContainerId]
	if c == nil {
		r.mu.Unlock()
		return nil, notFound(req.ContainerId)
	}
	if !r.ignoresStop[c.Metadata.Name] {
		r.end(c, 0)
	}
	r.mu.Unlock()
	select {
	case <-c.dead:
	case <-time.After(time.Duration(req.Timeout) * time.Second):
		r.mu.Lock()
		r.end(c, 137)
		r.mu.Unlock()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &cri.StopContainerResponse{}, nil
}

func (r *fakeRuntime) RemoveContainer(_ context.Context, req *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse,
	error) {
	if err := r.enter("RemoveContainer"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	delete(r.containers, req.ContainerId)
	return &cri.RemoveContainerResponse{}, nil
}

func (r *fakeRuntime) ListContainers(_ context.Context, req *cri.ListContainersRequest) (*cri.ListContainersResponse,
	error) {
	if err := r.enter("ListContainers"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	resp := &cri.ListContainersResponse{}
	for _, id := range slices.Sorted(maps.Keys(r.containers)) {
		if c := r.containers[id]; !r.gap && selected(c.Labels, req.GetFilter().GetLabelSelector()) {
			resp.Containers = append(resp.Containers, &cri.Container{
				Id: c.Id, PodSandboxId: c.sandbox, Metadata: c.Metadata, Image: c.Image, ImageRef: c.ImageRef,
				State:     c.State,
				CreatedAt: c.CreatedAt, Labels: c.Labels, Annotations: c.Annotations,
			})
		}
	}
	return resp, nil
}

func (r *fakeRuntime) ContainerStatus(_ context.Context, req *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse,
	error) {
	if err := r.enter("ContainerStatus"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	c := r.containers[req.ContainerId]
	if c == nil {
		return nil, notFound(req.ContainerId)
	}
	return &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{
		Id: c.Id, Metadata: c.Metadata, State: c.State, CreatedAt: c.CreatedAt, StartedAt: c.StartedAt,
		FinishedAt: c.FinishedAt,
		ExitCode:   c.ExitCode, Reason: c.Reason, Image: c.Image, ImageRef: c.ImageRef, Labels: c.Labels,
		Annotations: c.Annotations,
	}}, nil
}

func (r *fakeRuntime) ImageStatus(_ context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	if err := r.enter("ImageStatus"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	name := req.Image.Image
	if !r.images[name] {
		return &cri.ImageStatusResponse{}, nil
	}
	return &cri.ImageStatusResponse{Image: &cri.Image{Id: name, Size: 1000, RepoTags: []string{name}}}, nil
}

func (r *fakeRuntime) PullImage(ctx context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	if err := r.enter("PullImage"); err != nil {
		return nil, err
	}
	slow, away := r.slowPull[req.Image.Image], r.away
	r.mu.Unlock()
	if away {
		return nil, status.Error(codes.Unavailable, "the registry is away")
	}
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[req.Image.Image] = true
	return &cri.PullImageResponse{ImageRef: req.Image.Image}, nil
}

// left lists what the runtime still has.
func (r *fakeRuntime) left() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(slices.Sorted(maps.Keys(r.sandboxes)), slices.Sorted(maps.Keys(r.containers))...)
}

// running lists the ids of running containers.
func (r *fakeRuntime) running() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(r.containers)) {
		if r.containers[id].State == cri.ContainerState_CONTAINER_RUNNING {
			ids = append(ids, id)
		}
	}
	return ids
}

// fakeAPI holds pods with versions, as far as the agent's calls see them.
type fakeAPI struct {
	corev1client.PodInterface // calls that no test makes panic

	mu      sync.Mutex
	version int
	pods    map[string]*corev1.Pod
	history []string // what was written, in order
	fail    func(verb string, pod *corev1.Pod) error
	changed func(pod *corev1.Pod, deleted bool)
	news    []func() // not sent yet
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{
		pods: map[string]*corev1.Pod{}, fail: func(string, *corev1.Pod) error { return nil },
		changed: func(*corev1.Pod, bool) {},
	}
}

func (a *fakeAPI) Pods(string) corev1client.PodInterface { return a }

var podResource = corev1.Resource("pods")

// notify sends events in the order of the writes, as a watch does. The caller holds mu.
func (a *fakeAPI) notify(pod *corev1.Pod, deleted bool) {
	changed := a.changed
	a.news = append(a.news, func() { changed(pod, deleted) })
	if len(a.news) == 1 {
		go a.deliver()
	}
}

func (a *fakeAPI) deliver() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.news) > 0 {
		next := a.news[0]
		a.mu.Unlock()
		next()
		a.mu.Lock()
		a.news = a.news[1:]
	}
}

func (a *fakeAPI) store(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	a.version++
	pod.ResourceVersion = strconv.Itoa(a.version)
	a.pods[pod.Name] = pod
	a.notify(pod, false)
	return pod.DeepCopy()
}

// put creates or changes a pod as a user would.
func (a *fakeAPI) put(pod *corev1.Pod) *corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.store(pod)
}

// change edits the stored pod as a user would.
func (a *fakeAPI) change(name string, edit func(*corev1.Pod)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pod := a.pods[name].DeepCopy()
	edit(pod)
	a.store(pod)
}

func (a *fakeAPI) note(format string, args ...any) {
	a.history = append(a.history, fmt.Sprintf(format, args...))
}

func (a *fakeAPI) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if pod := a.pods[name]; pod != nil {
		return pod.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(podResource, name)
}

func (a *fakeAPI) UpdateStatus(_ context.Context, pod *corev1.Pod, _ metav1.UpdateOptions) (*corev1.Pod, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.fail("status", pod); err != nil {
		return nil, err
	}
	old := a.pods[pod.Name]
	switch {
	case old == nil:
		return nil, apierrors.NewNotFound(podResource, pod.Name)
	case old.UID != pod.UID || old.ResourceVersion != pod.ResourceVersion:
		return nil, apierrors.NewConflict(podResource, pod.Name,
			fmt.Errorf("version %s is not %s", pod.ResourceVersion, old.ResourceVersion))
	}
	next := old.DeepCopy()
	next.Status = *pod.Status.DeepCopy()
	a.note("status %s", next.Status.Phase)
	return a.store(next), nil
}

func (a *fakeAPI) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	pod := a.pods[name]
	switch {
	case pod == nil:
		return apierrors.NewNotFound(podResource, name)
	case o.Preconditions != nil && *o.Preconditions.UID != pod.UID:
		return apierrors.NewConflict(podResource, name, fmt.Errorf("another pod"))
	}
	if err := a.fail("delete", pod); err != nil {
		return err
	}
	a.note("delete grace=%d phase=%s", *o.GracePeriodSeconds, pod.Status.Phase)
	delete(a.pods, name)
	a.notify(pod, true)
	return nil
}

func (a *fakeAPI) log() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.history)
}

func (a *fakeAPI) get(name string) *corev1.Pod {
	pod, _ := a.Get(context.Background(), name, metav1.GetOptions{})
	return pod
}

// fakeDisk stands for volumes and cgroups.
type fakeDisk struct {
	full     error // of Prepare
	mu       sync.Mutex
	prepared map[types.UID]bool
}

func (d *fakeDisk) set(uid types.UID, on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.prepared[uid] = on
}

func (d *fakeDisk) has(uid types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.prepared[uid]
}

func (d *fakeDisk) Prepare(_ context.Context, pod *corev1.Pod) error {
	if d.full != nil {
		return d.full
	}
	d.set(pod.UID, true)
	return nil
}
func (d *fakeDisk) Volumes(types.UID) map[string]spec.Volume { return nil }
func (d *fakeDisk) SubPath(context.Context, spec.SubPath) (string, error) {
	return "", fmt.Errorf("no sub-paths here")
}
func (d *fakeDisk) HostsFile(types.UID, []byte) (string, error)        { return "/hosts", nil }
func (d *fakeDisk) TerminationLog(types.UID, string) (string, error)   { return "/termination", nil }
func (d *fakeDisk) ReadFile(types.UID, string, string) ([]byte, error) { return nil, nil }
func (d *fakeDisk) Resized(*corev1.Pod)                                {}
func (d *fakeDisk) Ensure(*corev1.Pod) error                           { return nil }
func (d *fakeDisk) Resize(*corev1.Pod, bool) error                     { return nil }
func (d *fakeDisk) Parent(*corev1.Pod) string                          { return "/kubepods/pod" }
func (d *fakeDisk) Remove(_ context.Context, uid types.UID) error      { d.set(uid, false); return nil }

func (d *fakeDisk) Of(*corev1.Pod) (*cri.UserNamespace, error) { return nil, nil }
func (d *fakeDisk) Release(types.UID)                          {}
