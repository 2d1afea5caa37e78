// Package native is carob's own container runtime: CRI v1 in this process, on the kernel's own
// primitives, with two small C programs (csrc) and without a shim, runc, or a pause program. The
// node agent drives it through runtime.Runtime; criserver serves the same object on a unix socket.
//
// It must never depend on pods beyond CRI, never execute the large Go binary for a container, and never
// hold a lock during a create: containers of different pods are started in parallel.
//
// Its parts: plan decides which mounts, capabilities, and filters a container gets and returns a
// program of small operations, which csrc/helper.c executes inside the new container. Every running
// process belongs to the pod's monitor (csrc/monitor.c), which outlives this process; monitor is
// the client of both, wire encodes the messages. cgroups creates and limits cgroups, seccomp
// compiles filters, images stores layers, state stores records. This package drives them and
// implements CRI. The parts never import it; images and streaming implement its interfaces, and the
// composition passes them in.
//
// Contract: docs/spec/pod-lifecycle.md.
package native

//go:generate make -C csrc

import (
	"context"
	"os"

	"github.com/containerd/containerd/v2/core/mount"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"carob/internal/network"
	"carob/internal/runtime"
)

// Images is what the runtime needs from an image store. Errors carry gRPC codes.
type Images interface {
	runtime.Images

	// Resolve finds a local image by name, digest, or ID; the code is NotFound if it is not
	// present. It never pulls.
	Resolve(ctx context.Context, ref string) (Image, error)
	// Prepare creates a writable snapshot of the image and returns the mounts (overlay or bind)
	// that show it. The same key returns the same snapshot again. points are the paths where the
	// container mounts something in it, directories with a slash at the end (plan.Container.Points).
	Prepare(ctx context.Context, key, imageID string, ids IDMap, points []string) ([]mount.Mount, error)
	// Mounted returns the writable snapshot of key as a mount that was made ahead and is attached
	// nowhere, once: the caller attaches it instead of the mounts of Prepare, and closes it. nil
	// means that there is none.
	Mounted(key string) *os.File
	// Unmounted ends a mount that Mounted would return, and prepares the snapshot for being mounted with the mounts of
	// Prepare, also after it was mounted before.
	Unmounted(key string) error
	// View is Prepare for a read-only snapshot (image volumes).
	View(ctx context.Context, key, imageID string) ([]mount.Mount, error)
	// Release removes the snapshot; an unknown key is not an error.
	Release(ctx context.Context, key string) error
	// Usage returns the current disk usage of the writable snapshot of key.
	Usage(ctx context.Context, key string) (Usage, error)
}

// Image is a local image.
type Image struct {
	ID     string // digest of the configuration, sha256:…
	Ref    string // ContainerStatus.image_ref: a repo digest if there is one, otherwise the ID
	Config imagespec.Image
}

// IDMap is the user namespace of a container; the zero value means the host's.
type IDMap struct {
	UIDs, GIDs []*cri.IDMapping
}

// Empty reports whether the container uses the IDs of the host.
func (m IDMap) Empty() bool { return len(m.UIDs) == 0 && len(m.GIDs) == 0 }

// hostRoot returns the host's IDs of the namespace's root user.
func (m IDMap) hostRoot() (uid, gid uint32) {
	of := func(list []*cri.IDMapping) uint32 {
		for _, x := range list {
			if x.ContainerId == 0 {
				return x.HostId
			}
		}
		return 0
	}
	return of(m.UIDs), of(m.GIDs)
}

// Usage is the disk usage of a snapshot.
type Usage struct {
	Bytes, Inodes int64
}

// Streaming creates the URLs that Exec, Attach, and PortForward return. The server behind them
// calls Runtime.Streams.
type Streaming interface {
	GetExec(*cri.ExecRequest) (*cri.ExecResponse, error)
	GetAttach(*cri.AttachRequest) (*cri.AttachResponse, error)
	GetPortForward(*cri.PortForwardRequest) (*cri.PortForwardResponse, error)
}

// Config is everything that a Runtime needs. Two runtimes with different directories, cgroup roots,
// and networks can run on one host.
type Config struct {
	// RootDir contains what survives a reboot: records of sandboxes and containers. StateDir
	// contains sockets and mounts (best below /run).
	RootDir, StateDir string

	// CgroupRoot is the cgroup that contains this runtime's own cgroups (monitors) and sandboxes
	// without a cgroup_parent, such as "/carob".
	CgroupRoot string
	// SystemdCgroups makes systemd create the cgroups of containers, over D-Bus; a cgroup_parent
	// then is the name of a slice. New fails if systemd does not answer.
	SystemdCgroups bool

	Images  Images
	Network network.PodNetwork

	// Name and Version are what Version answers ("carob", "0.1.0").
	Name, Version string

	// CDIDirs contain the specifications of CDI devices; the default is /etc/cdi and /var/run/cdi.
	// They are read for each container that requests a device.
	CDIDirs []string

	// SeccompRoot contains Localhost profiles with relative names.
	SeccompRoot string
	// SandboxPool is how many monitors are started in advance; zero for none.
	SandboxPool int

	// Checkpoint is called after every completed step; its error fails the step. It may be called
	// from several goroutines. It is for tests, which inject faults there, and for benchmarks,
	// which measure time; nil in the product.
	Checkpoint func(s Step, id string) error
}

var _ runtime.Runtime = (*Runtime)(nil)
var _ streaming.Runtime = (*Streams)(nil)
