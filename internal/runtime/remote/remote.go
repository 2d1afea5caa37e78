// Package remote is a container runtime behind a CRI v1 socket (containerd, CRI-O, carob's own) as
// a runtime.Runtime. It passes calls on with the timeouts of the kubelet (L0.46) and decides
// nothing. It must never retry a call that may have had an effect: the agent observes the runtime
// again and decides.
//
// Contract: docs/spec/pod-lifecycle.md.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/errkind"
	"carob/internal/base/seconds"
	"carob/internal/runtime"
)

// Timeouts of calls (L0.46). A pull and an exec without a timeout have none.
const (
	callTimeout    = 2 * time.Minute
	sandboxTimeout = 4 * time.Minute
)

// maxMessage is the largest message in bytes: a list of all containers of a node.
const maxMessage = 16 << 20

// Runtime is a connection to a runtime; it reconnects by itself. Methods are safe
// for concurrent use.
type Runtime struct {
	path    string
	conn    *grpc.ClientConn
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient
}

var (
	_ runtime.Runtime      = (*Runtime)(nil)
	_ runtime.Checkpointer = (*Runtime)(nil)
)

// Dial connects to a CRI endpoint, "unix:///run/containerd/containerd.sock" or the path alone, and
// requests its version once. Kinds: Invalid for another kind of endpoint, Unavailable if there is
// no answer, Unsupported if the server does not speak CRI v1.
func Dial(ctx context.Context, endpoint string) (*Runtime, error) {
	r, err := New(endpoint)
	if err != nil {
		return nil, err
	}
	if _, err := r.Version(ctx, &cri.VersionRequest{}); err != nil {
		_ = r.Close()
		switch status.Code(err) {
		case codes.Unimplemented:
			return nil, errkind.Errorf(errkind.Unsupported, "the runtime at %s does not speak CRI v1: %w", r.path, err)
		case codes.Unavailable:
			return nil, errkind.Errorf(errkind.Unavailable, "no container runtime answers at %s: %w", r.path,
				silence(r.path, err))
		}
		return nil, fmt.Errorf("get the version of the runtime at %s: %w", r.path, err)
	}
	return r, nil
}

// New is Dial without the request: the runtime need not run yet. Kinds: Invalid for another kind of endpoint.
func New(endpoint string) (*Runtime, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok && strings.Contains(endpoint, "://") || !strings.HasPrefix(path, "/") {
		return nil, errkind.Errorf(errkind.Invalid,
			"runtime endpoint %q is not a unix socket (unix:///path/to/cri.sock)",
			endpoint)
	}
	conn, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 3 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "runtime endpoint %q: %w", endpoint, err)
	}
	return &Runtime{path: path, conn: conn, runtime: cri.NewRuntimeServiceClient(conn),
		images: cri.NewImageServiceClient(conn)}, nil
}

// Connected returns when there is a connection to the socket, or the error of ctx.
func (r *Runtime) Connected(ctx context.Context) error {
	for {
		st := r.conn.GetState()
		if st == connectivity.Ready {
			return nil
		}
		if st == connectivity.Idle {
			r.conn.Connect()
		}
		if !r.conn.WaitForStateChange(ctx, st) {
			return ctx.Err()
		}
	}
}

// silence returns why a socket does not respond, with the text of the operating system, which gRPC wraps in its own
// status.
func silence(path string, err error) error {
	c, why := net.DialTimeout("unix", path, time.Second)
	if why == nil {
		_ = c.Close()
		return errors.New(status.Convert(err).Message())
	}
	if op, ok := errors.AsType[*net.OpError](why); ok {
		why = op.Err
	}
	if call, ok := errors.AsType[*os.SyscallError](why); ok {
		why = call.Err
	}
	return why
}

// Close ends the connection; running calls fail.
func (r *Runtime) Close() error { return r.conn.Close() }

// call passes one request on with a timeout; 0 means none.
func call[Req, Resp any](ctx context.Context, limit time.Duration,
	f func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req) (*Resp, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return f(ctx, req)
}

// ContainerEvents implements runtime.Runtime.
func (r *Runtime) ContainerEvents(ctx context.Context, emit func(*cri.ContainerEventResponse)) error {
	stream, err := r.runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return err
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Unavailable, "the runtime ended its stream of events")
		}
		if err != nil {
			return err
		}
		emit(e)
	}
}

// withGrace is the limit of a call that may take n seconds by itself. A pod may ask for more than a duration holds.
func withGrace(n int64) time.Duration {
	return min(seconds.Duration(n), math.MaxInt64-callTimeout) + callTimeout
}

// StopContainer waits for the grace period and two minutes more.
func (r *Runtime) StopContainer(ctx context.Context, req *cri.StopContainerRequest) (*cri.StopContainerResponse,
	error) {
	return call(ctx, withGrace(req.GetTimeout()), r.runtime.StopContainer, req)
}

// ExecSync waits for the command's own timeout and two minutes more; a timeout of 0 means no limit.
func (r *Runtime) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	limit := time.Duration(0)
	if req.GetTimeout() > 0 {
		limit = withGrace(req.GetTimeout())
	}
	return call(ctx, limit, r.runtime.ExecSync, req)
}

// settle is how old a container must be before an attach. containerd notices an exit with a delay: until then an attach
// succeeds and shows nothing, whereas an error makes kubectl read the log instead.
const settle = 500 * time.Millisecond

// Attach waits until the container is old enough that it cannot be a command that has already
// exited.
func (r *Runtime) Attach(ctx context.Context, req *cri.AttachRequest) (*cri.AttachResponse, error) {
	resp, err := r.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: req.GetContainerId()})
	if err != nil {
		return nil, err
	}
	if wait := settle - time.Since(time.Unix(0,
		resp.GetStatus().GetStartedAt())); resp.GetStatus().GetState() == cri.ContainerState_CONTAINER_RUNNING &&
		wait > 0 {
		select {
		case <-time.After(min(wait, settle)): // its clock may be ahead
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return call(ctx, callTimeout, r.runtime.Attach, req)
}

// PullImage has no timeout of its own.
func (r *Runtime) PullImage(ctx context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	return call(ctx, 0, r.images.PullImage, req)
}

// RunPodSandbox may take longer than other calls: it waits for the network.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse,
	error) {
	return call(ctx, sandboxTimeout, r.runtime.RunPodSandbox, req)
}

// CheckpointContainer waits for the time limit of the request and two minutes more; 0 means no limit.
func (r *Runtime) CheckpointContainer(ctx context.Context,
	req *cri.CheckpointContainerRequest) (*cri.CheckpointContainerResponse, error) {
	limit := time.Duration(0)
	if req.GetTimeout() > 0 {
		limit = withGrace(req.GetTimeout())
	}
	return call(ctx, limit, r.runtime.CheckpointContainer, req)
}
