// Package native is carob's own container runtime: CRI v1 in this process, on
// the kernel's own primitives, with two small C programs (csrc) and no shim,
// no runc and no pause program. The node agent drives it through
// runtime.Runtime; criserver serves the same object on a unix socket.
//
// It must never know pods beyond CRI, never re-execute the big Go binary on
// the path of a container, and never hold a lock across a create: containers
// of different pods are started side by side.
//
// Its parts: plan decides which mounts, capabilities and filters a container
// gets and yields a program of small operations, which csrc/helper.c executes
// inside the new container. Every running process belongs to the pod's monitor
// (csrc/monitor.c), which outlives this process; monitor speaks to both, wire
// encodes what they say. cgroups creates and limits groups, seccomp compiles
// filters, images keeps layers, state keeps records. This package drives them
// and answers CRI. The parts never import it; images and streaming, which the
// process puts in, implement interfaces of it.
//
// Contract: docs/spec/pod-lifecycle.md.
package native

//go:generate make -C csrc

import (
	"context"

	"github.com/containerd/containerd/v2/core/mount"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"carob/internal/network"
	"carob/internal/runtime"
)

// Images is what the runtime needs of an image store. Errors carry gRPC codes.
type Images interface {
	runtime.Images

	// Resolve finds a local image by name, digest or id; codes.NotFound when
	// it is not here. It never pulls.
	Resolve(ctx context.Context, ref string) (Image, error)
	// Prepare makes a writable snapshot of the image and answers the mounts
	// (overlay or bind) that show it; nothing is mounted. The same key answers
	// the same snapshot again.
	Prepare(ctx context.Context, key, imageID string, ids IDMap) ([]mount.Mount, error)
	// View is Prepare for a read-only snapshot (image volumes).
	View(ctx context.Context, key, imageID string) ([]mount.Mount, error)
	// Release removes the snapshot; an unknown key is no error.
	Release(ctx context.Context, key string) error
	// Usage is what the writable snapshot of key holds now.
	Usage(ctx context.Context, key string) (Usage, error)
}

// Image is a local image.
type Image struct {
	ID     string // digest of the configuration, sha256:…
	Ref    string // what ContainerStatus calls image_ref: a repo digest when there is one, else the id
	Config imagespec.Image
}

// IDMap is the user namespace of a container; the zero value is the host's.
type IDMap struct {
	UIDs, GIDs []*cri.IDMapping
}

// Empty reports whether ids are those of the host.
func (m IDMap) Empty() bool { return len(m.UIDs) == 0 && len(m.GIDs) == 0 }

// hostRoot are the host's ids of the namespace's root.
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

// Usage is disk use of a snapshot.
type Usage struct {
	Bytes, Inodes int64
}

// Streaming makes the URLs that answer Exec, Attach and PortForward. The server
// behind them calls Runtime.Streams.
type Streaming interface {
	GetExec(*cri.ExecRequest) (*cri.ExecResponse, error)
	GetAttach(*cri.AttachRequest) (*cri.AttachResponse, error)
	GetPortForward(*cri.PortForwardRequest) (*cri.PortForwardResponse, error)
}

// Config is everything a Runtime needs. Two runtimes with different directories,
// cgroup roots and networks run side by side on one host.
type Config struct {
	// RootDir holds what outlives a reboot: records of sandboxes and
	// containers. StateDir holds sockets and mounts (best below /run).
	RootDir, StateDir string

	// CgroupRoot is the cgroup below which this runtime keeps its own groups
	// (monitors) and sandboxes without a cgroup_parent, such as "/carob".
	CgroupRoot string
	// SystemdCgroups has systemd make the cgroups of containers, over D-Bus; a
	// cgroup_parent then is the name of a slice. New fails where systemd does not answer.
	SystemdCgroups bool

	Images  Images
	Network network.PodNetwork

	// Name and Version are what Version answers ("carob", "0.1.0").
	Name, Version string

	// CDIDirs is where specifications of CDI devices live; /etc/cdi and /var/run/cdi
	// when empty. They are read with each container that asks for one.
	CDIDirs []string

	// SeccompRoot is where Localhost profiles with relative names live.
	SeccompRoot string
	// SandboxPool is how many monitors stand ready; zero for none.
	SandboxPool int

	// Checkpoint hears of every step that is over; its error fails the step. It may
	// be called from several goroutines. For tests, which break the runtime
	// there, and benchmarks, which take the time; nil in the product.
	Checkpoint func(s Step, id string) error
}

var _ runtime.Runtime = (*Runtime)(nil)
var _ streaming.Runtime = (*Streams)(nil)
