package native

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/criu"
	"carob/internal/runtime/native/state"
)

// UpdateContainerResources changes a container's limits, running or not.
func (r *Runtime) UpdateContainerResources(ctx context.Context,
	req *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	c.start.Lock()
	defer c.start.Unlock()
	c.mu.Lock()
	now := c.state()
	merged := merge(c.currentResources(), req.GetLinux())
	c.mu.Unlock()
	if now == cri.ContainerState_CONTAINER_EXITED {
		return nil, status.Errorf(codes.FailedPrecondition, "container %q has exited", c.rec.ID)
	}
	if now == cri.ContainerState_CONTAINER_RUNNING {
		if err := r.limit(ctx, c.rec.Cgroup, req.GetLinux()); err != nil {
			return nil, coded(fmt.Errorf("failed to update container %q: %w", c.rec.ID, err))
		}
	}
	c.mu.Lock()
	c.rec.Resources = state.Encode(merged)
	c.mu.Unlock()
	if err := r.saveContainer(c); err != nil {
		return nil, coded(err)
	}
	return &cri.UpdateContainerResourcesResponse{}, nil
}

// merge returns resources with a change of them, in which zero, and a list without elements, leave what there is.
func merge(old, change *cri.LinuxContainerResources) *cri.LinuxContainerResources {
	merged := proto.Clone(old).(*cri.LinuxContainerResources)
	if len(change.GetHugepageLimits()) > 0 {
		merged.HugepageLimits = nil // proto.Merge would append
	}
	if change != nil {
		proto.Merge(merged, change)
	}
	return merged
}

// currentResources returns the resources that were requested last; c.mu is held.
func (c *container) currentResources() *cri.LinuxContainerResources {
	if len(c.rec.Resources) > 0 {
		r := &cri.LinuxContainerResources{}
		if proto.Unmarshal(c.rec.Resources, r) == nil {
			return r
		}
	}
	if r := c.config.GetLinux().GetResources(); r != nil {
		return r
	}
	return &cri.LinuxContainerResources{}
}

// UpdatePodSandboxResources is called after the agent has resized the pod's cgroup; nothing in the
// sandbox itself has a limit.
func (r *Runtime) UpdatePodSandboxResources(ctx context.Context,
	req *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	if _, err := r.sandbox(req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &cri.UpdatePodSandboxResourcesResponse{}, nil
}

// CheckpointContainer implements runtime.Checkpointer with CRIU.
func (r *Runtime) CheckpointContainer(ctx context.Context, req *cri.CheckpointContainerRequest) (
	*cri.CheckpointContainerResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if !c.running() {
		return nil, status.Errorf(codes.FailedPrecondition, "container %q is not running", req.GetContainerId())
	}
	rec := c.record()
	resp, err := r.checkpoints.Checkpoint(ctx, criu.Container{Dir: r.containerDir(rec.ID), PID: rec.Pid,
		StartedAt: rec.StartedAt, Config: c.config, ImageID: rec.ImageID}, req)
	return resp, coded(err)
}
