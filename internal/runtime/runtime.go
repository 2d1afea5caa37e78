// Package runtime is the contract between the node agent and a container runtime: CRI v1 as Go
// calls. native implements it in this process, remote over any CRI socket, and sim for the
// simulator; runtimetest tests each of them. The agent drives it; it must never depend on pods beyond CRI.
package runtime

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// Sandboxes are the calls about pod sandboxes.
type Sandboxes interface {
	RunPodSandbox(context.Context, *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error)
	StopPodSandbox(context.Context, *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error)
	RemovePodSandbox(context.Context, *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error)
	PodSandboxStatus(context.Context, *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error)
	ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error)
	UpdatePodSandboxResources(context.Context,
		*cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error)
	PodSandboxStats(context.Context, *cri.PodSandboxStatsRequest) (*cri.PodSandboxStatsResponse, error)
	ListPodSandboxStats(context.Context, *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error)
	PortForward(context.Context, *cri.PortForwardRequest) (*cri.PortForwardResponse, error)
}

// Containers are the calls about containers. Exec, Attach, and PortForward return the URL of a
// streaming server, as in CRI.
type Containers interface {
	CreateContainer(context.Context, *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error)
	StartContainer(context.Context, *cri.StartContainerRequest) (*cri.StartContainerResponse, error)
	StopContainer(context.Context, *cri.StopContainerRequest) (*cri.StopContainerResponse, error)
	RemoveContainer(context.Context, *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse, error)
	ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error)
	ContainerStatus(context.Context, *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error)
	UpdateContainerResources(context.Context,
		*cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error)
	ReopenContainerLog(context.Context, *cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error)
	ExecSync(context.Context, *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error)
	Exec(context.Context, *cri.ExecRequest) (*cri.ExecResponse, error)
	Attach(context.Context, *cri.AttachRequest) (*cri.AttachResponse, error)
	ContainerStats(context.Context, *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse, error)
	ListContainerStats(context.Context, *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error)
}

// Images are the calls of the image service.
type Images interface {
	ListImages(context.Context, *cri.ListImagesRequest) (*cri.ListImagesResponse, error)
	ImageStatus(context.Context, *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error)
	PullImage(context.Context, *cri.PullImageRequest) (*cri.PullImageResponse, error)
	RemoveImage(context.Context, *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error)
	ImageFsInfo(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error)
}

// OutputHolder is an optional extension of CRI: the runtime holds the first output of a container for a client that
// attaches a moment too late, and can be notified that clients have seen it.
type OutputHolder interface {
	// LogShown is called before a client reads the whole log of the container: held output that is
	// in the log by then is dropped, later output is held. For a container that has exited, the log
	// has everything, so nothing is held any more. The error is errors.ErrUnsupported if this
	// runtime never holds output.
	LogShown(ctx context.Context, containerID string) error
}

// Attacher is an optional extension of CRI: it attaches without a streaming server, so that the caller gets the result
// of the attach.
type Attacher interface {
	// AttachContainer connects streams to a container until it exits, the client disconnects (nil),
	// or ctx ends. A nil stream is not connected.
	AttachContainer(
		ctx context.Context, id string, in io.Reader, out, errw io.WriteCloser, tty bool,
		resize <-chan remotecommand.TerminalSize,
	) error
}

// SomeAttacher is an Attacher for some of its containers.
type SomeAttacher interface {
	Attacher
	// Attaches reports whether AttachContainer works for the container.
	Attaches(containerID string) bool
}

// Checkpointer is the part of CRI that only some runtimes have.
type Checkpointer interface {
	// CheckpointContainer writes the state of a running container to the archive that the request
	// names. The code is Unimplemented if the runtime cannot do that.
	CheckpointContainer(context.Context, *cri.CheckpointContainerRequest) (*cri.CheckpointContainerResponse, error)
}

// Checkpoint calls the runtime's CheckpointContainer. The code is Unimplemented if rt is not a Checkpointer.
func Checkpoint(ctx context.Context, rt any,
	req *cri.CheckpointContainerRequest) (*cri.CheckpointContainerResponse, error) {
	c, ok := rt.(Checkpointer)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "this container runtime cannot checkpoint containers")
	}
	return c.CheckpointContainer(ctx, req)
}

// HandlerWatcher is an optional extension of CRI: the runtime passes the pods of some RuntimeClass handlers on to other
// runtimes, which may be down while it is up.
type HandlerWatcher interface {
	// WatchHandlers calls emit when such a runtime is found to be down, also at the start, and when it answers again;
	// it returns when ctx ends. It makes one call at a time. Of states that follow each other faster than emit
	// returns, it may omit all but the last.
	WatchHandlers(ctx context.Context, emit func(HandlerState))
}

// HandlerState is the state of the runtime of some RuntimeClass handlers.
type HandlerState struct {
	Handlers []string // their names in RuntimeClasses
	Endpoint string   // the socket of the runtime
	Err      error    // why it cannot be used; nil: it answers
}

// Counter is an optional extension of CRI: figures that cAdvisor has and CRI's statistics do not.
type Counter interface {
	// Counters returns them for the containers that run and for the interfaces of pods.
	Counters(ctx context.Context) Counters
}

// Counters are figures since the start; the keys are the ids of containers and of sandboxes.
type Counters struct {
	Containers map[string]ContainerCounters
	Interfaces map[string][]InterfaceCounters
	// Stats and Sandboxes are CRI's statistics of the same moment, as far as cAdvisor has them: no pressure, no limits,
	// and of sandboxes the network only. The size of a writable layer may be ten seconds old.
	Stats     []*cri.ContainerStats
	Sandboxes []*cri.PodSandboxStats
}

// ContainerCounters are those of one container. CPU periods are counted while it has a CPU limit.
type ContainerCounters struct {
	Periods, ThrottledPeriods uint64
	Throttled                 time.Duration
	Cache, Mapped             uint64 // bytes of memory
	Devices                   []DeviceCounters
}

// DeviceCounters are what a container read from and wrote to one block device.
type DeviceCounters struct {
	Name                    string // e.g. "/dev/vda"
	Reads, Writes           uint64
	BytesRead, BytesWritten uint64
}

// InterfaceCounters are packets of one network interface of a pod.
type InterfaceCounters struct {
	Name                            string
	Received, ReceivedDropped       uint64
	Transmitted, TransmittedDropped uint64
}

// Runtime is a container runtime. In every implementation, errors carry gRPC status codes
// (NotFound, AlreadyExists, InvalidArgument …), and a cancelled context aborts the call and leaves
// nothing unfinished.
type Runtime interface {
	Sandboxes
	Containers
	Images

	Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error)
	Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error)
	RuntimeConfig(context.Context, *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse, error)
	UpdateRuntimeConfig(context.Context, *cri.UpdateRuntimeConfigRequest) (*cri.UpdateRuntimeConfigResponse, error)

	// ContainerEvents calls emit for each event until ctx ends or the stream breaks, and returns
	// why. The code is Unimplemented if the runtime has no events; the caller then lists again from
	// time to time.
	ContainerEvents(ctx context.Context, emit func(*cri.ContainerEventResponse)) error
}
