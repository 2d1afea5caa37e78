package router

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
)

// The calls below go to the runtime that has the sandbox or the container.

// StopPodSandbox implements runtime.Runtime.
func (r *Router) StopPodSandbox(ctx context.Context, req *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse,
	error) {
	return byID(ctx, r, req.GetPodSandboxId(), runtime.Runtime.StopPodSandbox, req)
}

// PodSandboxStatus implements runtime.Runtime.
func (r *Router) PodSandboxStatus(ctx context.Context,
	req *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	return byID(ctx, r, req.GetPodSandboxId(), runtime.Runtime.PodSandboxStatus, req)
}

// UpdatePodSandboxResources implements runtime.Runtime.
func (r *Router) UpdatePodSandboxResources(ctx context.Context,
	req *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	return byID(ctx, r, req.GetPodSandboxId(), runtime.Runtime.UpdatePodSandboxResources, req)
}

// PodSandboxStats implements runtime.Runtime.
func (r *Router) PodSandboxStats(ctx context.Context, req *cri.PodSandboxStatsRequest) (*cri.PodSandboxStatsResponse,
	error) {
	return byID(ctx, r, req.GetPodSandboxId(), runtime.Runtime.PodSandboxStats, req)
}

// PortForward implements runtime.Runtime.
func (r *Router) PortForward(ctx context.Context, req *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	return byID(ctx, r, req.GetPodSandboxId(), runtime.Runtime.PortForward, req)
}

// StartContainer implements runtime.Runtime.
func (r *Router) StartContainer(ctx context.Context, req *cri.StartContainerRequest) (*cri.StartContainerResponse,
	error) {
	return byID(ctx, r, req.GetContainerId(), runtime.Runtime.StartContainer, req)
}

// StopContainer implements runtime.Runtime.
func (r *Router) StopContainer(ctx context.Context, req *cri.StopContainerRequest) (*cri.StopContainerResponse,
	error) {
	return byID(ctx, r, req.GetContainerId(), runtime.Runtime.StopContainer, req)
}

// ContainerStatus implements runtime.Runtime.
func (r *Router) ContainerStatus(ctx context.Context, req *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse,
	error) {
	return byID(ctx, r, req.GetContainerId(), runtime.Runtime.ContainerStatus, req)
}

// UpdateContainerResources implements runtime.Runtime.
func (r *Router) UpdateContainerResources(ctx context.Context,
	req *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	return byID(ctx, r, req.GetContainerId(), runtime.Runtime.UpdateContainerResources, req)
}

// ReopenContainerLog implements runtime.Runtime.
func (r *Router) ReopenContainerLog(ctx context.Context,
	req *cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error) {
	return byID(ctx, r, req.GetContainerId(), runtime.Runtime.ReopenContainerLog, req)
}

// ExecSync implements runtime.Runtime.
func (r *Router) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	return byID(ctx, r, req.GetContainerId(), runtime.Runtime.ExecSync, req)
}

// Exec implements runtime.Runtime.
func (r *Router) Exec(ctx context.Context, req *cri.ExecRequest) (*cri.ExecResponse, error) {
	return byID(ctx, r, req.GetContainerId(), runtime.Runtime.Exec, req)
}

// Attach implements runtime.Runtime.
func (r *Router) Attach(ctx context.Context, req *cri.AttachRequest) (*cri.AttachResponse, error) {
	return byID(ctx, r, req.GetContainerId(), runtime.Runtime.Attach, req)
}

// ContainerStats implements runtime.Runtime.
func (r *Router) ContainerStats(ctx context.Context, req *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse,
	error) {
	return byID(ctx, r, req.GetContainerId(), runtime.Runtime.ContainerStats, req)
}
