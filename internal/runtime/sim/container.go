package sim

import (
	"context"
	"path"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type container struct {
	id       string
	config   *cri.ContainerConfig
	sandbox  *sandbox
	does     Behaviour
	state    cri.ContainerState
	created  int64
	started  int64
	finished int64
	code     int32
	reason   string
	message  string
	limits   *cri.LinuxContainerResources
	obscure  bool          // the runtime reports its state as unknown
	timers   []func()      // cancel the timer that would end it
	waiters  []func(error) // stops that wait for its end
}

func (c *container) running() bool { return c.state == cri.ContainerState_CONTAINER_RUNNING }

// CreateContainer implements runtime.Runtime. Name and attempt are reserved
// within a sandbox, and the sandbox must be ready.
func (r *Runtime) CreateContainer(ctx context.Context, req *cri.CreateContainerRequest) (*cri.CreateContainerResponse,
	error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	if err := validate(req.GetConfig()); err != nil {
		return nil, err
	}
	r.mu.Lock()
	s := r.sandbox(req.GetPodSandboxId())
	switch {
	case s == nil:
		r.mu.Unlock()
		return nil, notFound("sandbox", req.GetPodSandboxId())
	case !s.ready:
		r.mu.Unlock()
		return nil, status.Errorf(codes.FailedPrecondition, "sandbox %q is not ready", s.id)
	}
	meta := req.GetConfig().GetMetadata()
	for _, c := range r.containers {
		m := c.config.GetMetadata()
		if c.sandbox.config.GetMetadata().GetUid() == s.config.GetMetadata().GetUid() &&
			m.GetName() == meta.GetName() && m.GetAttempt() == meta.GetAttempt() {
			r.mu.Unlock()
			return nil, status.Errorf(codes.AlreadyExists, "container name %s attempt %d is reserved for %q",
				meta.GetName(), meta.GetAttempt(), c.id)
		}
	}
	if image := imageName(req.GetConfig().GetImage().GetImage()); !slices.Contains(r.images, image) {
		r.mu.Unlock()
		return nil, notFound("image", image)
	}
	c := &container{id: r.nextID("container"), config: req.GetConfig(), sandbox: s,
		does:   r.cfg.Behaviour(req.GetConfig()),
		limits: req.GetConfig().GetLinux().GetResources(),
		state:  cri.ContainerState_CONTAINER_CREATED, created: r.cfg.Clock.Now().UnixNano()}
	r.containers = append(r.containers, c)
	notify := r.notification(c.id, cri.ContainerEventType_CONTAINER_CREATED_EVENT, s)
	r.mu.Unlock()
	notify()
	return &cri.CreateContainerResponse{ContainerId: c.id}, nil
}

// validate rejects what no runtime can create.
func validate(c *cri.ContainerConfig) error {
	if sc := c.GetLinux().GetSecurityContext(); sc.GetRunAsGroup() != nil && sc.GetRunAsUser() == nil &&
		sc.GetRunAsUsername() == "" {
		return status.Error(codes.InvalidArgument, "a group needs a user")
	}
	for _, m := range c.GetMounts() {
		if m.GetRecursiveReadOnly() &&
			(!m.GetReadonly() || m.GetPropagation() != cri.MountPropagation_PROPAGATION_PRIVATE) {
			return status.Errorf(codes.InvalidArgument, "mount %s: recursive read-only needs a private read-only mount",
				m.GetContainerPath())
		}
	}
	return nil
}

// StartContainer implements runtime.Runtime.
func (r *Runtime) StartContainer(ctx context.Context, req *cri.StartContainerRequest) (*cri.StartContainerResponse,
	error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	r.mu.Lock()
	c := r.container(req.GetContainerId())
	if c == nil {
		r.mu.Unlock()
		return nil, notFound("container", req.GetContainerId())
	}
	if c.state != cri.ContainerState_CONTAINER_CREATED || !c.sandbox.ready {
		r.mu.Unlock()
		return nil, status.Errorf(codes.FailedPrecondition, "container %q is in state %v, its sandbox in state %v",
			c.id, c.state, c.sandbox.state())
	}
	c.started = r.cfg.Clock.Now().UnixNano()
	if c.does.StartErr != "" {
		notify := r.exit(c, 128, "StartError")
		c.message = c.does.StartErr
		r.mu.Unlock()
		notify()
		return nil, status.Error(codes.Unknown, c.does.StartErr)
	}
	c.state = cri.ContainerState_CONTAINER_RUNNING
	if d := c.does.Exit; d > 0 {
		r.after(c, d, c.does.Code)
	}
	notify := r.notification(c.id, cri.ContainerEventType_CONTAINER_STARTED_EVENT, c.sandbox)
	r.mu.Unlock()
	notify()
	return &cri.StartContainerResponse{}, nil
}

// StopContainer implements runtime.Runtime: SIGTERM, Timeout seconds, SIGKILL. If ctx ends first,
// the container has only received SIGTERM, and another StopContainer may have a shorter timeout.
func (r *Runtime) StopContainer(ctx context.Context, req *cri.StopContainerRequest) (*cri.StopContainerResponse,
	error) {
	done := make(chan error, 1)
	abort := r.Stop(req.GetContainerId(), time.Duration(req.GetTimeout())*time.Second, func(err error) { done <- err })
	select {
	case err := <-done:
		return &cri.StopContainerResponse{}, err
	case <-ctx.Done():
		abort()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// Stop is StopContainer for callers that must not block: done is called when the container has
// exited, or at once. After abort, nothing is killed and done is not called.
func (r *Runtime) Stop(id string, grace time.Duration, done func(error)) (abort func()) {
	r.mu.Lock()
	c := r.container(id)
	if c == nil || !c.running() {
		r.mu.Unlock()
		done(nil) // idempotent, also for unknown ones
		return func() {}
	}
	live := true
	c.waiters = append(c.waiters, func(err error) {
		if live {
			live = false
			done(err)
		}
	})
	if !c.does.IgnoreTerm && grace > 0 { // without a grace period there is only SIGKILL
		r.after(c, c.does.Linger, c.does.TermCode)
	}
	kill := r.after(c, grace, 137)
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		live = false
		kill()
	}
}

// after exits c with code after d, if it still runs then.
func (r *Runtime) after(c *container, d time.Duration, code int32) (stop func()) {
	end := func() { r.End(c.id, code, "") }
	stop = r.cfg.Clock.AfterFunc(d, end)
	c.timers = append(c.timers, stop)
	return stop
}

// End ends a running container as if its process had exited; an empty reason means Completed or
// Error. It does nothing to other containers.
func (r *Runtime) End(id string, code int32, reason string) {
	r.mu.Lock()
	c := r.container(id)
	if c == nil || !c.running() {
		r.mu.Unlock()
		return
	}
	if reason == "" {
		reason = "Completed"
		if code != 0 {
			reason = "Error"
		}
	}
	notify := r.exit(c, code, reason)
	r.mu.Unlock()
	notify()
}

// exit records the exit of c; the caller calls the result without the lock.
func (r *Runtime) exit(c *container, code int32, reason string) func() {
	c.state, c.code, c.reason, c.finished = cri.ContainerState_CONTAINER_EXITED, code, reason,
		r.cfg.Clock.Now().UnixNano()
	c.obscure, c.message = false, c.does.Message
	for _, stop := range c.timers {
		stop()
	}
	waiters := c.waiters
	c.timers, c.waiters = nil, nil
	notify := r.notification(c.id, cri.ContainerEventType_CONTAINER_STOPPED_EVENT, c.sandbox)
	return func() {
		notify()
		for _, w := range waiters {
			w(nil)
		}
	}
}

// RemoveContainer implements runtime.Runtime; a running one is killed first.
func (r *Runtime) RemoveContainer(ctx context.Context, req *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse,
	error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	r.End(req.GetContainerId(), 137, "Error")
	r.mu.Lock()
	c := r.container(req.GetContainerId())
	notify := func() {}
	if c != nil {
		r.containers = slices.DeleteFunc(r.containers, func(o *container) bool { return o == c })
		notify = r.notification(c.id, cri.ContainerEventType_CONTAINER_DELETED_EVENT, c.sandbox)
	}
	r.mu.Unlock()
	notify()
	return &cri.RemoveContainerResponse{}, nil
}

// ListContainers implements runtime.Runtime.
func (r *Runtime) ListContainers(_ context.Context, req *cri.ListContainersRequest) (*cri.ListContainersResponse,
	error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &cri.ListContainersResponse{}
	f := req.GetFilter()
	for _, c := range r.containers {
		if f.GetId() != "" && f.GetId() != c.id || f.GetPodSandboxId() != "" && f.GetPodSandboxId() != c.sandbox.id ||
			f.GetState() != nil && f.GetState().GetState() != c.reported() ||
			!matches(f.GetLabelSelector(), c.config.GetLabels()) {
			continue
		}
		resp.Containers = append(resp.Containers,
			&cri.Container{Id: c.id, PodSandboxId: c.sandbox.id, Metadata: c.config.GetMetadata(),
				Image: c.config.GetImage(), ImageRef: "sha256:" + imageName(c.config.GetImage().GetImage()),
				ImageId: "sha256:" + imageName(c.config.GetImage().GetImage()), State: c.reported(),
				CreatedAt: c.created,
				Labels:    c.config.GetLabels(), Annotations: c.config.GetAnnotations()})
	}
	return resp, nil
}

// ContainerStatus implements runtime.Runtime.
func (r *Runtime) ContainerStatus(_ context.Context, req *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse,
	error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.container(req.GetContainerId())
	if c == nil {
		return nil, notFound("container", req.GetContainerId())
	}
	return &cri.ContainerStatusResponse{Status: c.status()}, nil
}

func (c *container) status() *cri.ContainerStatus {
	st := &cri.ContainerStatus{
		Id: c.id, Metadata: c.config.GetMetadata(), State: c.reported(), CreatedAt: c.created, StartedAt: c.started,
		FinishedAt: c.finished,
		ExitCode:   c.code, Reason: c.reason, Message: c.message, Image: c.config.GetImage(),
		ImageRef: "sha256:" + imageName(c.config.GetImage().GetImage()),
		Labels:   c.config.GetLabels(), Annotations: c.config.GetAnnotations(), Mounts: c.config.GetMounts(),
		StopSignal: c.config.GetStopSignal(),
		LogPath:    path.Join(c.sandbox.config.GetLogDirectory(), c.config.GetLogPath()),
	}
	st.ImageId = st.ImageRef
	if st.StopSignal == cri.Signal_SIGNAL_RUNTIME_DEFAULT {
		st.StopSignal = cri.Signal_SIGNAL_SIGTERM
	}
	if c.limits != nil {
		st.Resources = &cri.ContainerResources{Linux: c.limits}
	}
	return st
}

// reported is the state that the runtime reports.
func (c *container) reported() cri.ContainerState {
	if c.obscure {
		return cri.ContainerState_CONTAINER_UNKNOWN
	}
	return c.state
}

// Obscure makes the runtime lose track of a running container, as when its shim does not answer:
// its state is unknown until it exits. It does nothing to other containers.
func (r *Runtime) Obscure(id string) {
	r.mu.Lock()
	c := r.container(id)
	if c == nil || !c.running() {
		r.mu.Unlock()
		return
	}
	c.obscure = true
	notify := r.notification(c.id, cri.ContainerEventType_CONTAINER_STARTED_EVENT, c.sandbox) // something happened
	r.mu.Unlock()
	notify()
}

// UpdateContainerResources implements runtime.Runtime: it replaces what is reported.
func (r *Runtime) UpdateContainerResources(_ context.Context,
	req *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.container(req.GetContainerId())
	switch {
	case c == nil:
		return nil, notFound("container", req.GetContainerId())
	case c.state == cri.ContainerState_CONTAINER_EXITED:
		return nil, status.Errorf(codes.FailedPrecondition, "container %q has exited", c.id)
	}
	if l := req.GetLinux(); l != nil {
		c.limits = updated(c.limits, l)
		r.changes++
	}
	return &cri.UpdateContainerResourcesResponse{}, nil
}

// updated applies the values of an update; 0 leaves a value unchanged.
func updated(old, by *cri.LinuxContainerResources) *cri.LinuxContainerResources {
	n := &cri.LinuxContainerResources{CpuPeriod: by.CpuPeriod, CpuQuota: by.CpuQuota, CpuShares: by.CpuShares,
		MemoryLimitInBytes: by.MemoryLimitInBytes,
		OomScoreAdj:        by.OomScoreAdj, CpusetCpus: by.CpusetCpus, CpusetMems: by.CpusetMems,
		HugepageLimits: by.HugepageLimits, Unified: by.Unified}
	keep := func(to *int64, was int64) {
		if *to == 0 {
			*to = was
		}
	}
	keep(&n.CpuPeriod, old.GetCpuPeriod())
	keep(&n.CpuQuota, old.GetCpuQuota())
	keep(&n.CpuShares, old.GetCpuShares())
	keep(&n.MemoryLimitInBytes, old.GetMemoryLimitInBytes())
	return n
}

// ReopenContainerLog implements runtime.Runtime.
func (r *Runtime) ReopenContainerLog(_ context.Context,
	req *cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.container(req.GetContainerId()); c == nil || !c.running() {
		return nil, status.Errorf(codes.FailedPrecondition, "container %q does not run", req.GetContainerId())
	}
	return &cri.ReopenContainerLogResponse{}, nil
}

// ExecSync implements runtime.Runtime with Config.Exec.
func (r *Runtime) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	r.mu.Lock()
	c := r.container(req.GetContainerId())
	running := c != nil && c.running()
	r.mu.Unlock()
	switch {
	case c == nil:
		return nil, notFound("container", req.GetContainerId())
	case !running:
		return nil, status.Errorf(codes.FailedPrecondition, "container %q does not run", req.GetContainerId())
	case r.cfg.Exec == nil:
		return &cri.ExecSyncResponse{}, nil
	}
	out, code := r.cfg.Exec(req.GetContainerId(), req.GetCmd())
	return &cri.ExecSyncResponse{Stdout: []byte(out), ExitCode: code}, nil
}

func (r *Runtime) container(id string) *container {
	for _, c := range r.containers {
		if c.id == id {
			return c
		}
	}
	return nil
}
