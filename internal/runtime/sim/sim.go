// Package sim is a simulated container runtime: CRI v1 like the native and the remote runtime,
// without processes. A Behaviour decides what a container does. Clock provides the time, so hours
// pass in an instant and a run can be repeated exactly.
//
// The simulator and tests of the node agent drive it. It must never access the host, start a
// goroutine, or read a clock of its own.
package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
)

// Clock is the time of a Runtime.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f after d, unless stop is called before.
	AfterFunc(d time.Duration, f func()) (stop func())
}

// SystemClock is the clock of package time; in a synctest bubble it is virtual too.
type SystemClock struct{}

// Now implements Clock.
func (SystemClock) Now() time.Time { return time.Now() }

// AfterFunc implements Clock.
func (SystemClock) AfterFunc(d time.Duration, f func()) func() {
	t := time.AfterFunc(d, f)
	return func() { t.Stop() }
}

// Behaviour is what the process of a container does. The zero value runs until SIGTERM and then
// exits with 0 at once.
type Behaviour struct {
	Exit       time.Duration // exits by itself this long after its start; zero: never
	Code       int32         // the exit code then
	IgnoreTerm bool          // ignores SIGTERM
	Linger     time.Duration // time from SIGTERM to the exit
	TermCode   int32         // the exit code after SIGTERM
	Message    string        // its termination message
	StartErr   string        // StartContainer fails with it (the container is then exited, StartError)
}

// Config is what a Runtime needs. The zero value works.
type Config struct {
	Clock     Clock                                                     // nil: SystemClock
	Behaviour func(*cri.ContainerConfig) Behaviour                      // nil: the zero Behaviour
	Exec      func(id string, cmd []string) (stdout string, code int32) // nil: success
	Images    []string                                                  // present from the start
	PullError func(image string) error                                  // nil: every image can be pulled
	Name      string                                                    // Version's runtime name; empty: "sim"
	DualStack bool                                                      // pods also get an IPv6 address
}

// Runtime is a simulated container runtime. Its methods may be called from several goroutines; IDs
// are counted up, lists are in order of creation.
type Runtime struct {
	cri.UnimplementedRuntimeServiceServer
	cri.UnimplementedImageServiceServer

	cfg Config

	mu         sync.Mutex
	changes    uint64
	count      int
	addresses  int
	sandboxes  []*sandbox
	containers []*container
	images     []string
	listeners  map[int]func(*cri.ContainerEventResponse)
	networkErr string
}

var _ runtime.Runtime = (*Runtime)(nil)

// New creates an empty Runtime.
func New(cfg Config) *Runtime {
	if cfg.Clock == nil {
		cfg.Clock = SystemClock{}
	}
	if cfg.Behaviour == nil {
		cfg.Behaviour = func(*cri.ContainerConfig) Behaviour { return Behaviour{} }
	}
	if cfg.Name == "" {
		cfg.Name = "sim"
	}
	return &Runtime{cfg: cfg, images: append([]string(nil), cfg.Images...),
		listeners: map[int]func(*cri.ContainerEventResponse){}}
}

// Version implements runtime.Runtime.
func (r *Runtime) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{Version: "0.1.0", RuntimeName: r.cfg.Name, RuntimeVersion: "1.0.0",
		RuntimeApiVersion: "v1"}, nil
}

// Status implements runtime.Runtime.
func (r *Runtime) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: cri.RuntimeReady, Status: true},
		{Type: cri.NetworkReady, Status: r.networkErr == "", Message: r.networkErr},
	}}}, nil
}

// SetNetworkProblem makes Status report the pod network as not ready; "" ends that.
func (r *Runtime) SetNetworkProblem(problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.networkErr = problem
}

// RuntimeConfig implements runtime.Runtime.
func (r *Runtime) RuntimeConfig(context.Context, *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse, error) {
	return &cri.RuntimeConfigResponse{Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: cri.CgroupDriver_CGROUPFS}},
		nil
}

// UpdateRuntimeConfig implements runtime.Runtime.
func (r *Runtime) UpdateRuntimeConfig(context.Context,
	*cri.UpdateRuntimeConfigRequest) (*cri.UpdateRuntimeConfigResponse, error) {
	return &cri.UpdateRuntimeConfigResponse{}, nil
}

// ContainerEvents implements runtime.Runtime: it emits until ctx ends.
func (r *Runtime) ContainerEvents(ctx context.Context, emit func(*cri.ContainerEventResponse)) error {
	defer r.Listen(emit)()
	<-ctx.Done()
	return ctx.Err()
}

// Listen calls emit for each event, from the call that causes it, until stop is called.
func (r *Runtime) Listen(emit func(*cri.ContainerEventResponse)) (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	id := r.count
	r.listeners[id] = emit
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.listeners, id)
	}
}

// Changes counts changes: while it stays the same, every status and list does.
func (r *Runtime) Changes() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changes
}

// notification creates the event of a change; the caller calls the result without the lock.
func (r *Runtime) notification(id string, kind cri.ContainerEventType, s *sandbox) func() {
	r.changes++
	if len(r.listeners) == 0 {
		return func() {}
	}
	e := &cri.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: r.cfg.Clock.Now().UnixNano()}
	if s != nil {
		e.PodSandboxStatus = s.status()
		for _, c := range r.containers {
			if c.sandbox == s {
				e.ContainersStatuses = append(e.ContainersStatuses, c.status())
			}
		}
	}
	list := make([]func(*cri.ContainerEventResponse), 0, len(r.listeners))
	for i := 0; i <= r.count && len(list) < len(r.listeners); i++ {
		if l, ok := r.listeners[i]; ok {
			list = append(list, l)
		}
	}
	return func() {
		for _, l := range list {
			l(e)
		}
	}
}

// nextID returns a new ID: "sandbox-1", "container-2".
func (r *Runtime) nextID(kind string) string {
	r.count++
	return fmt.Sprintf("%s-%d", kind, r.count)
}

func notFound(what, id string) error {
	return status.Errorf(codes.NotFound, "%s %q: not found", what, id)
}
