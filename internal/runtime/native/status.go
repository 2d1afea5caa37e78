package native

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sort"
	"time"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *sandbox) state() cri.PodSandboxState {
	if s.rec.StoppedAt != 0 || s.mon == nil {
		return cri.PodSandboxState_SANDBOX_NOTREADY
	}
	return cri.PodSandboxState_SANDBOX_READY
}

func (s *sandbox) status() *cri.PodSandboxStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &cri.PodSandboxStatus{
		Id: s.rec.ID, Metadata: s.config.Metadata, State: s.state(), CreatedAt: s.rec.CreatedAt,
		Network: &cri.PodSandboxNetworkStatus{},
		Linux:   &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: s.options()}},
		Labels:  s.config.Labels, Annotations: s.config.Annotations, RuntimeHandler: s.rec.Handler,
	}
	if st.State == cri.PodSandboxState_SANDBOX_READY {
		for i, ip := range s.rec.IPs {
			if i == 0 {
				st.Network.Ip = ip
			} else {
				st.Network.AdditionalIps = append(st.Network.AdditionalIps, &cri.PodIP{Ip: ip})
			}
		}
	}
	return st
}

// PodSandboxStatus returns a sandbox and, for the evented PLEG, its containers.
func (r *Runtime) PodSandboxStatus(ctx context.Context,
	req *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	s, err := r.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	resp := &cri.PodSandboxStatusResponse{Status: s.status(), Timestamp: time.Now().UnixNano()}
	for _, c := range r.containersOf(s.rec.ID) {
		resp.ContainersStatuses = append(resp.ContainersStatuses, c.status())
	}
	if req.GetVerbose() {
		info, err := json.Marshal(map[string]any{"pid": s.rec.Monitor, "netns": s.rec.NetNS, "userns": s.rec.UserNS,
			"config": s.config})
		if err != nil {
			return nil, err
		}
		resp.Info = map[string]string{"info": string(info)}
	}
	return resp, nil
}

// ListPodSandbox lists sandboxes, newest first.
func (r *Runtime) ListPodSandbox(ctx context.Context, req *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse,
	error) {
	f := req.GetFilter()
	resp := &cri.ListPodSandboxResponse{}
	for _, s := range r.allSandboxes() {
		s.mu.Lock()
		item := &cri.PodSandbox{
			Id: s.rec.ID, Metadata: s.config.Metadata, State: s.state(), CreatedAt: s.rec.CreatedAt,
			Labels: s.config.Labels, Annotations: s.config.Annotations, RuntimeHandler: s.rec.Handler,
		}
		s.mu.Unlock()
		if f.GetId() != "" && !idMatches(item.Id, f.Id) || f.GetState() != nil && f.State.State != item.State ||
			!labelsMatch(item.Labels, f.GetLabelSelector()) {
			continue
		}
		resp.Items = append(resp.Items, item)
	}
	sort.Slice(resp.Items, func(i, j int) bool { return resp.Items[i].CreatedAt > resp.Items[j].CreatedAt })
	return resp, nil
}

func (c *container) status() *cri.ContainerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := &cri.ContainerStatus{
		Id: c.rec.ID, Metadata: c.config.Metadata, State: c.state(),
		CreatedAt: c.rec.CreatedAt, StartedAt: c.rec.StartedAt, FinishedAt: c.rec.FinishedAt,
		Image: c.config.Image, ImageRef: c.rec.ImageRef, ImageId: c.rec.ImageID,
		Labels: c.config.Labels, Annotations: c.config.Annotations, Mounts: c.config.Mounts, LogPath: c.rec.LogPath,
		Resources:  &cri.ContainerResources{Linux: c.config.GetLinux().GetResources()},
		StopSignal: signalOf(c.stopSignal()),
	}
	if c.rec.ImageName != "" {
		st.Image = &cri.ImageSpec{Image: c.rec.ImageName,
			UserSpecifiedImage: c.config.GetImage().GetUserSpecifiedImage()}
	}
	if len(c.rec.Resources) > 0 {
		r := &cri.LinuxContainerResources{}
		if proto.Unmarshal(c.rec.Resources, r) == nil {
			st.Resources.Linux = r
		}
	}
	if st.State == cri.ContainerState_CONTAINER_EXITED {
		st.ExitCode, st.Reason, st.Message = c.rec.ExitCode, c.rec.Reason, c.rec.Message
	}
	if u := c.rec.User; u != nil {
		l := &cri.LinuxContainerUser{Uid: int64(u.UID), Gid: int64(u.GID)}
		for _, g := range u.Groups {
			l.SupplementalGroups = append(l.SupplementalGroups, int64(g))
		}
		st.User = &cri.ContainerUser{Linux: l}
	}
	return st
}

// ContainerStatus returns everything that is known about a container.
func (r *Runtime) ContainerStatus(ctx context.Context, req *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse,
	error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &cri.ContainerStatusResponse{Status: c.status()}
	if req.GetVerbose() {
		rec := c.record()
		info, err := json.Marshal(map[string]any{"sandboxID": rec.SandboxID, "pid": rec.Pid, "cgroup": rec.Cgroup,
			"config": c.config})
		if err != nil {
			return nil, err
		}
		resp.Info = map[string]string{"info": string(info)}
	}
	return resp, nil
}

// ListContainers lists containers, newest first.
func (r *Runtime) ListContainers(ctx context.Context, req *cri.ListContainersRequest) (*cri.ListContainersResponse,
	error) {
	f := req.GetFilter()
	resp := &cri.ListContainersResponse{}
	for _, c := range r.allContainers() {
		c.mu.Lock()
		item := &cri.Container{
			Id: c.rec.ID, PodSandboxId: c.rec.SandboxID, Metadata: c.config.Metadata, Image: c.config.Image,
			ImageRef: c.rec.ImageRef,
			ImageId:  c.rec.ImageID, State: c.state(), CreatedAt: c.rec.CreatedAt, Labels: c.config.Labels,
			Annotations: c.config.Annotations,
		}
		c.mu.Unlock()
		if f.GetId() != "" && !idMatches(item.Id, f.Id) || f.GetState() != nil && f.State.State != item.State ||
			f.GetPodSandboxId() != "" && !idMatches(item.PodSandboxId, f.PodSandboxId) ||
			!labelsMatch(item.Labels, f.GetLabelSelector()) {
			continue
		}
		resp.Containers = append(resp.Containers, item)
	}
	sort.Slice(resp.Containers,
		func(i, j int) bool { return resp.Containers[i].CreatedAt > resp.Containers[j].CreatedAt })
	return resp, nil
}

func (r *Runtime) allSandboxes() []*sandbox {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.sandboxes))
}

func (r *Runtime) allContainers() []*container {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.containers))
}

func idMatches(id, filter string) bool {
	return len(filter) <= len(id) && id[:len(filter)] == filter
}

func labelsMatch(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
