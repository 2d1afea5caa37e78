package sim

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type sandbox struct {
	id      string
	config  *cri.PodSandboxConfig
	created int64
	ready   bool
	host    bool
	ips     []string
}

// RunPodSandbox implements runtime.Runtime. As in CRI, name and attempt of a pod are reserved: a
// second sandbox with the same ones is rejected.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse,
	error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	r.mu.Lock()
	meta := req.GetConfig().GetMetadata()
	for _, s := range r.sandboxes {
		if m := s.config.GetMetadata(); m.GetUid() == meta.GetUid() && m.GetAttempt() == meta.GetAttempt() {
			r.mu.Unlock()
			return nil, status.Errorf(codes.AlreadyExists, "sandbox name of %s attempt %d is reserved for %q",
				meta.GetName(), meta.GetAttempt(), s.id)
		}
	}
	s := &sandbox{id: r.nextID("sandbox"), config: req.GetConfig(), created: r.cfg.Clock.Now().UnixNano(), ready: true}
	s.host = req.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() ==
		cri.NamespaceMode_NODE
	if !s.host {
		r.addresses++
		s.ips = []string{fmt.Sprintf("10.88.%d.%d", r.addresses/250, 2+r.addresses%250)}
		if r.cfg.DualStack {
			s.ips = append(s.ips, fmt.Sprintf("fd88::%x", r.addresses))
		}
	}
	r.sandboxes = append(r.sandboxes, s)
	created := r.notification(s.id, cri.ContainerEventType_CONTAINER_CREATED_EVENT, s)
	started := r.notification(s.id, cri.ContainerEventType_CONTAINER_STARTED_EVENT, s)
	r.mu.Unlock()
	created()
	started()
	return &cri.RunPodSandboxResponse{PodSandboxId: s.id}, nil
}

// StopPodSandbox implements runtime.Runtime; it kills everything that runs.
func (r *Runtime) StopPodSandbox(ctx context.Context, req *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse,
	error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	r.mu.Lock()
	s := r.sandbox(req.GetPodSandboxId())
	if s == nil {
		r.mu.Unlock()
		return &cri.StopPodSandboxResponse{}, nil // idempotent, also for unknown ones
	}
	var notify []func()
	for _, c := range r.containers {
		if c.sandbox == s && c.running() {
			notify = append(notify, r.exit(c, 137, "Error"))
		}
	}
	if s.ready {
		s.ready, s.ips = false, nil
		notify = append(notify, r.notification(s.id, cri.ContainerEventType_CONTAINER_STOPPED_EVENT, s))
	}
	r.mu.Unlock()
	for _, f := range notify {
		f()
	}
	return &cri.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox implements runtime.Runtime; containers are removed with their sandbox.
func (r *Runtime) RemovePodSandbox(ctx context.Context,
	req *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	if _, err := r.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: req.GetPodSandboxId()}); err != nil {
		return nil, err
	}
	r.mu.Lock()
	s := r.sandbox(req.GetPodSandboxId())
	var notify []func()
	if s != nil {
		r.containers = slices.DeleteFunc(r.containers, func(c *container) bool {
			if c.sandbox == s {
				notify = append(notify, r.notification(c.id, cri.ContainerEventType_CONTAINER_DELETED_EVENT, s))
			}
			return c.sandbox == s
		})
		r.sandboxes = slices.DeleteFunc(r.sandboxes, func(o *sandbox) bool { return o == s })
		notify = append(notify, r.notification(s.id, cri.ContainerEventType_CONTAINER_DELETED_EVENT, s))
	}
	r.mu.Unlock()
	for _, f := range notify {
		f()
	}
	return &cri.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus implements runtime.Runtime.
func (r *Runtime) PodSandboxStatus(_ context.Context, req *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse,
	error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandbox(req.GetPodSandboxId())
	if s == nil {
		return nil, notFound("sandbox", req.GetPodSandboxId())
	}
	return &cri.PodSandboxStatusResponse{Status: s.status(), Timestamp: r.cfg.Clock.Now().UnixNano()}, nil
}

// ListPodSandbox implements runtime.Runtime.
func (r *Runtime) ListPodSandbox(_ context.Context, req *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse,
	error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &cri.ListPodSandboxResponse{}
	f := req.GetFilter()
	for _, s := range r.sandboxes {
		if f.GetId() != "" && f.GetId() != s.id || f.GetState() != nil && f.GetState().GetState() != s.state() ||
			!matches(f.GetLabelSelector(), s.config.GetLabels()) {
			continue
		}
		resp.Items = append(resp.Items,
			&cri.PodSandbox{Id: s.id, Metadata: s.config.GetMetadata(), State: s.state(), CreatedAt: s.created,
				Labels: s.config.GetLabels(), Annotations: s.config.GetAnnotations()})
	}
	return resp, nil
}

// UpdatePodSandboxResources implements runtime.Runtime.
func (r *Runtime) UpdatePodSandboxResources(_ context.Context,
	req *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sandbox(req.GetPodSandboxId()) == nil {
		return nil, notFound("sandbox", req.GetPodSandboxId())
	}
	return &cri.UpdatePodSandboxResourcesResponse{}, nil
}

// KillSandbox makes a sandbox not ready, as when its pause process dies; the
// containers in it die with it.
func (r *Runtime) KillSandbox(id string) {
	_, _ = r.StopPodSandbox(context.Background(), &cri.StopPodSandboxRequest{PodSandboxId: id})
}

// LoseAddress removes the addresses of a sandbox, as when the network is set up again.
func (r *Runtime) LoseAddress(id string) {
	r.mu.Lock()
	s := r.sandbox(id)
	if s == nil {
		r.mu.Unlock()
		return
	}
	s.ips = nil
	notify := r.notification(s.id, cri.ContainerEventType_CONTAINER_STARTED_EVENT, s) // something happened to it
	r.mu.Unlock()
	notify()
}

// Reboot ends everything at once, like a restart of the machine. With keep, the runtime still has
// its sandboxes, not ready, and its containers, exited with 255; without, only images are left.
func (r *Runtime) Reboot(keep bool) {
	r.mu.Lock()
	var notify []func()
	for _, c := range r.containers {
		if c.running() {
			notify = append(notify, r.exit(c, 255, "Unknown"))
		}
	}
	for _, s := range r.sandboxes {
		s.ready, s.ips = false, nil
	}
	if !keep {
		r.containers, r.sandboxes = nil, nil
	}
	r.changes++
	r.mu.Unlock()
	for _, f := range notify {
		f()
	}
}

func (r *Runtime) sandbox(id string) *sandbox {
	for _, s := range r.sandboxes {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (s *sandbox) state() cri.PodSandboxState {
	if s.ready {
		return cri.PodSandboxState_SANDBOX_READY
	}
	return cri.PodSandboxState_SANDBOX_NOTREADY
}

func (s *sandbox) status() *cri.PodSandboxStatus {
	st := &cri.PodSandboxStatus{Id: s.id, Metadata: s.config.GetMetadata(), State: s.state(), CreatedAt: s.created,
		Labels: s.config.GetLabels(), Annotations: s.config.GetAnnotations(), Network: &cri.PodSandboxNetworkStatus{},
		Linux: &cri.LinuxPodSandboxStatus{
			Namespaces: &cri.Namespace{Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions()}}}
	for i, ip := range s.ips {
		if i == 0 {
			st.Network.Ip = ip
			continue
		}
		st.Network.AdditionalIps = append(st.Network.AdditionalIps, &cri.PodIP{Ip: ip})
	}
	return st
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}
