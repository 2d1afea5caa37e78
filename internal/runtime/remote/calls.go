package remote

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The calls below have the common time limit.

// StopPodSandbox implements runtime.Runtime.
func (r *Runtime) StopPodSandbox(ctx context.Context, req *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse,
	error) {
	return call(ctx, callTimeout, r.runtime.StopPodSandbox, req)
}

// RemovePodSandbox implements runtime.Runtime.
func (r *Runtime) RemovePodSandbox(ctx context.Context,
	req *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	return call(ctx, callTimeout, r.runtime.RemovePodSandbox, req)
}

// PodSandboxStatus implements runtime.Runtime.
func (r *Runtime) PodSandboxStatus(ctx context.Context,
	req *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	return call(ctx, callTimeout, r.runtime.PodSandboxStatus, req)
}

// ListPodSandbox implements runtime.Runtime.
func (r *Runtime) ListPodSandbox(ctx context.Context, req *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse,
	error) {
	return call(ctx, callTimeout, r.runtime.ListPodSandbox, req)
}

// UpdatePodSandboxResources implements runtime.Runtime.
func (r *Runtime) UpdatePodSandboxResources(ctx context.Context,
	req *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	return call(ctx, callTimeout, r.runtime.UpdatePodSandboxResources, req)
}

// PodSandboxStats implements runtime.Runtime.
func (r *Runtime) PodSandboxStats(ctx context.Context, req *cri.PodSandboxStatsRequest) (*cri.PodSandboxStatsResponse,
	error) {
	return call(ctx, callTimeout, r.runtime.PodSandboxStats, req)
}

// ListPodSandboxStats implements runtime.Runtime.
func (r *Runtime) ListPodSandboxStats(ctx context.Context,
	req *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error) {
	return call(ctx, callTimeout, r.runtime.ListPodSandboxStats, req)
}

// PortForward implements runtime.Runtime.
func (r *Runtime) PortForward(ctx context.Context, req *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	return call(ctx, callTimeout, r.runtime.PortForward, req)
}

// CreateContainer implements runtime.Runtime.
func (r *Runtime) CreateContainer(ctx context.Context, req *cri.CreateContainerRequest) (*cri.CreateContainerResponse,
	error) {
	return call(ctx, callTimeout, r.runtime.CreateContainer, req)
}

// StartContainer implements runtime.Runtime.
func (r *Runtime) StartContainer(ctx context.Context, req *cri.StartContainerRequest) (*cri.StartContainerResponse,
	error) {
	return call(ctx, callTimeout, r.runtime.StartContainer, req)
}

// RemoveContainer implements runtime.Runtime.
func (r *Runtime) RemoveContainer(ctx context.Context, req *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse,
	error) {
	return call(ctx, callTimeout, r.runtime.RemoveContainer, req)
}

// ListContainers implements runtime.Runtime.
func (r *Runtime) ListContainers(ctx context.Context, req *cri.ListContainersRequest) (*cri.ListContainersResponse,
	error) {
	return call(ctx, callTimeout, r.runtime.ListContainers, req)
}

// ContainerStatus implements runtime.Runtime.
func (r *Runtime) ContainerStatus(ctx context.Context, req *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse,
	error) {
	return call(ctx, callTimeout, r.runtime.ContainerStatus, req)
}

// UpdateContainerResources implements runtime.Runtime.
func (r *Runtime) UpdateContainerResources(ctx context.Context,
	req *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	return call(ctx, callTimeout, r.runtime.UpdateContainerResources, req)
}

// ReopenContainerLog implements runtime.Runtime.
func (r *Runtime) ReopenContainerLog(ctx context.Context,
	req *cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error) {
	return call(ctx, callTimeout, r.runtime.ReopenContainerLog, req)
}

// Exec implements runtime.Runtime.
func (r *Runtime) Exec(ctx context.Context, req *cri.ExecRequest) (*cri.ExecResponse, error) {
	return call(ctx, callTimeout, r.runtime.Exec, req)
}

// ContainerStats implements runtime.Runtime.
func (r *Runtime) ContainerStats(ctx context.Context, req *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse,
	error) {
	return call(ctx, callTimeout, r.runtime.ContainerStats, req)
}

// ListContainerStats implements runtime.Runtime.
func (r *Runtime) ListContainerStats(ctx context.Context,
	req *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	return call(ctx, callTimeout, r.runtime.ListContainerStats, req)
}

// Version implements runtime.Runtime.
func (r *Runtime) Version(ctx context.Context, req *cri.VersionRequest) (*cri.VersionResponse, error) {
	return call(ctx, callTimeout, r.runtime.Version, req)
}

// Status implements runtime.Runtime.
func (r *Runtime) Status(ctx context.Context, req *cri.StatusRequest) (*cri.StatusResponse, error) {
	return call(ctx, callTimeout, r.runtime.Status, req)
}

// RuntimeConfig implements runtime.Runtime.
func (r *Runtime) RuntimeConfig(ctx context.Context, req *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse,
	error) {
	return call(ctx, callTimeout, r.runtime.RuntimeConfig, req)
}

// UpdateRuntimeConfig implements runtime.Runtime.
func (r *Runtime) UpdateRuntimeConfig(ctx context.Context,
	req *cri.UpdateRuntimeConfigRequest) (*cri.UpdateRuntimeConfigResponse, error) {
	return call(ctx, callTimeout, r.runtime.UpdateRuntimeConfig, req)
}

// ListImages implements runtime.Runtime.
func (r *Runtime) ListImages(ctx context.Context, req *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	return call(ctx, callTimeout, r.images.ListImages, req)
}

// ImageStatus implements runtime.Runtime.
func (r *Runtime) ImageStatus(ctx context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	return call(ctx, callTimeout, r.images.ImageStatus, req)
}

// RemoveImage implements runtime.Runtime.
func (r *Runtime) RemoveImage(ctx context.Context, req *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	return call(ctx, callTimeout, r.images.RemoveImage, req)
}

// ImageFsInfo implements runtime.Runtime.
func (r *Runtime) ImageFsInfo(ctx context.Context, req *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	return call(ctx, callTimeout, r.images.ImageFsInfo, req)
}
