package metrics

import (
	"context"
	"errors"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
)

// Runtime returns the runtime with its calls counted and timed.
func (m *Meter) Runtime(inner runtime.Runtime) runtime.Runtime { return &metered{inner, m} }

// metered is a runtime whose calls are counted; streams of events are not.
type metered struct {
	runtime.Runtime
	m *Meter
}

// call makes one call and counts it.
func call[Req, Resp any](ctx context.Context, m *Meter, operation string, do func(context.Context, Req) (Resp, error),
	req Req) (Resp, error) {
	began := time.Now()
	m.operations.WithLabelValues(operation).Inc()
	resp, err := do(ctx, req)
	m.operationTime.WithLabelValues(operation).Observe(time.Since(began).Seconds())
	if err != nil {
		m.operationErrors.WithLabelValues(operation).Inc()
	}
	return resp, err
}

// LogShown passes on a call that is not part of CRI; a runtime without it holds back no output and returns
// errors.ErrUnsupported.
func (r *metered) LogShown(ctx context.Context, containerID string) error {
	if holder, ok := r.Runtime.(runtime.OutputHolder); ok {
		return holder.LogShown(ctx, containerID)
	}
	return errors.ErrUnsupported
}

// RunPodSandbox also has its own metric.
func (r *metered) RunPodSandbox(ctx context.Context, req *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse,
	error) {
	began := time.Now()
	resp, err := call(ctx, r.m, "run_podsandbox", r.Runtime.RunPodSandbox, req)
	r.m.sandboxTime.WithLabelValues(req.RuntimeHandler).Observe(time.Since(began).Seconds())
	if err != nil {
		r.m.sandboxErrors.WithLabelValues(req.RuntimeHandler).Inc()
	}
	return resp, err
}

func (r *metered) RemoveImage(ctx context.Context, req *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	return call(ctx, r.m, "remove_image", r.Runtime.RemoveImage, req)
}

// CheckpointContainer implements runtime.Checkpointer where the runtime does.
func (r *metered) CheckpointContainer(ctx context.Context,
	req *cri.CheckpointContainerRequest) (*cri.CheckpointContainerResponse, error) {
	return call(ctx, r.m, "checkpoint_container", func(ctx context.Context,
		req *cri.CheckpointContainerRequest) (*cri.CheckpointContainerResponse, error) {
		return runtime.Checkpoint(ctx, r.Runtime, req)
	}, req)
}

func (r *metered) StopPodSandbox(ctx context.Context, req *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse,
	error) {
	return call(ctx, r.m, "stop_podsandbox", r.Runtime.StopPodSandbox, req)
}

func (r *metered) RemovePodSandbox(ctx context.Context,
	req *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	return call(ctx, r.m, "remove_podsandbox", r.Runtime.RemovePodSandbox, req)
}

func (r *metered) PodSandboxStatus(ctx context.Context,
	req *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	return call(ctx, r.m, "podsandbox_status", r.Runtime.PodSandboxStatus, req)
}

func (r *metered) ListPodSandbox(ctx context.Context, req *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse,
	error) {
	return call(ctx, r.m, "list_podsandbox", r.Runtime.ListPodSandbox, req)
}

func (r *metered) UpdatePodSandboxResources(ctx context.Context,
	req *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	return call(ctx, r.m, "update_podsandbox_resources", r.Runtime.UpdatePodSandboxResources, req)
}

func (r *metered) PodSandboxStats(ctx context.Context, req *cri.PodSandboxStatsRequest) (*cri.PodSandboxStatsResponse,
	error) {
	return call(ctx, r.m, "podsandbox_stats", r.Runtime.PodSandboxStats, req)
}

func (r *metered) ListPodSandboxStats(ctx context.Context,
	req *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error) {
	return call(ctx, r.m, "list_podsandbox_stats", r.Runtime.ListPodSandboxStats, req)
}

func (r *metered) PortForward(ctx context.Context, req *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	return call(ctx, r.m, "port_forward", r.Runtime.PortForward, req)
}

func (r *metered) CreateContainer(ctx context.Context, req *cri.CreateContainerRequest) (*cri.CreateContainerResponse,
	error) {
	return call(ctx, r.m, "create_container", r.Runtime.CreateContainer, req)
}

func (r *metered) StartContainer(ctx context.Context, req *cri.StartContainerRequest) (*cri.StartContainerResponse,
	error) {
	return call(ctx, r.m, "start_container", r.Runtime.StartContainer, req)
}

func (r *metered) StopContainer(ctx context.Context, req *cri.StopContainerRequest) (*cri.StopContainerResponse,
	error) {
	return call(ctx, r.m, "stop_container", r.Runtime.StopContainer, req)
}

func (r *metered) RemoveContainer(ctx context.Context, req *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse,
	error) {
	return call(ctx, r.m, "remove_container", r.Runtime.RemoveContainer, req)
}

func (r *metered) ListContainers(ctx context.Context, req *cri.ListContainersRequest) (*cri.ListContainersResponse,
	error) {
	return call(ctx, r.m, "list_containers", r.Runtime.ListContainers, req)
}

func (r *metered) ContainerStatus(ctx context.Context, req *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse,
	error) {
	return call(ctx, r.m, "container_status", r.Runtime.ContainerStatus, req)
}

func (r *metered) UpdateContainerResources(ctx context.Context,
	req *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	return call(ctx, r.m, "update_container", r.Runtime.UpdateContainerResources, req)
}

func (r *metered) ReopenContainerLog(ctx context.Context,
	req *cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error) {
	return call(ctx, r.m, "reopen_container_log", r.Runtime.ReopenContainerLog, req)
}

func (r *metered) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	return call(ctx, r.m, "exec_sync", r.Runtime.ExecSync, req)
}

func (r *metered) Exec(ctx context.Context, req *cri.ExecRequest) (*cri.ExecResponse, error) {
	return call(ctx, r.m, "exec", r.Runtime.Exec, req)
}

func (r *metered) Attach(ctx context.Context, req *cri.AttachRequest) (*cri.AttachResponse, error) {
	return call(ctx, r.m, "attach", r.Runtime.Attach, req)
}

func (r *metered) ContainerStats(ctx context.Context, req *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse,
	error) {
	return call(ctx, r.m, "container_stats", r.Runtime.ContainerStats, req)
}

func (r *metered) ListContainerStats(ctx context.Context,
	req *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	return call(ctx, r.m, "list_container_stats", r.Runtime.ListContainerStats, req)
}

func (r *metered) ListImages(ctx context.Context, req *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	return call(ctx, r.m, "list_images", r.Runtime.ListImages, req)
}

func (r *metered) ImageStatus(ctx context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	return call(ctx, r.m, "image_status", r.Runtime.ImageStatus, req)
}

func (r *metered) PullImage(ctx context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	return call(ctx, r.m, "pull_image", r.Runtime.PullImage, req)
}

func (r *metered) ImageFsInfo(ctx context.Context, req *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	return call(ctx, r.m, "image_fs_info", r.Runtime.ImageFsInfo, req)
}

func (r *metered) Version(ctx context.Context, req *cri.VersionRequest) (*cri.VersionResponse, error) {
	return call(ctx, r.m, "version", r.Runtime.Version, req)
}

func (r *metered) Status(ctx context.Context, req *cri.StatusRequest) (*cri.StatusResponse, error) {
	return call(ctx, r.m, "status", r.Runtime.Status, req)
}

func (r *metered) RuntimeConfig(ctx context.Context, req *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse,
	error) {
	return call(ctx, r.m, "runtime_config", r.Runtime.RuntimeConfig, req)
}

func (r *metered) UpdateRuntimeConfig(ctx context.Context,
	req *cri.UpdateRuntimeConfigRequest) (*cri.UpdateRuntimeConfigResponse, error) {
	return call(ctx, r.m, "update_runtime_config", r.Runtime.UpdateRuntimeConfig, req)
}
