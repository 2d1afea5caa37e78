// Package remote is a container runtime behind a CRI v1 socket, such as
// containerd or CRI-O. It adds what a client owes the server: deadlines (L0.46)
// and one connection that repairs itself. The node agent drives it; it must
// never know what the runtime does.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
)

// Deadlines of CRI calls (L0.46). A pull has none: its caller cancels it.
const (
	callTimeout    = 2 * time.Minute
	sandboxTimeout = 4 * time.Minute
)

// maxMessage bounds an answer: a list of some thousand containers is a few megabytes.
const maxMessage = 16 << 20

// Runtime is a connected runtime. All methods are safe for concurrent use.
type Runtime struct {
	conn    *grpc.ClientConn
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient
}

var _ runtime.Runtime = (*Runtime)(nil)

// Dial connects to a socket named by a path or a unix:// URL and asks who answers.
// It fails with one clear line when nobody does within the context's time.
func Dial(ctx context.Context, endpoint string) (*Runtime, *cri.VersionResponse, error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, nil, err
	}
	conn, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a unix socket; the file's mode guards it
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}}))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to container runtime %s: %w", endpoint, err)
	}
	r := &Runtime{conn: conn, runtime: cri.NewRuntimeServiceClient(conn), images: cri.NewImageServiceClient(conn)}
	v, err := r.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("no container runtime answers CRI v1 at %s: %s", endpoint, status.Convert(err).Message())
	}
	return r, v, nil
}

func socketPath(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "" && u.Scheme != "unix" || u.Path == "" {
		return "", fmt.Errorf("container runtime %q: give a unix socket, such as unix:///run/containerd/containerd.sock", endpoint)
	}
	st, err := os.Stat(u.Path)
	if err != nil {
		return "", fmt.Errorf("container runtime: %w", err)
	}
	if st.Mode()&os.ModeSocket == 0 {
		return "", fmt.Errorf("container runtime: %s is no socket", u.Path)
	}
	return u.Path, nil
}

// Close ends the connection; containers are not touched.
func (r *Runtime) Close() error { return r.conn.Close() }

// call makes one call with a deadline; zero is none.
func call[Req, Resp any](ctx context.Context, timeout time.Duration, f func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return f(ctx, req)
}

// ContainerEvents implements runtime.Runtime.
func (r *Runtime) ContainerEvents(ctx context.Context, emit func(*cri.ContainerEventResponse)) error {
	s, err := r.runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return err
	}
	for {
		ev, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Unavailable, "the runtime ended the stream of events")
		}
		if err != nil {
			return err
		}
		emit(ev)
	}
}

// StopContainer implements runtime.Runtime; its deadline follows the grace.
func (r *Runtime) StopContainer(ctx context.Context, req *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	return call(ctx, time.Duration(req.Timeout)*time.Second+callTimeout, r.runtime.StopContainer, req)
}

// ExecSync implements runtime.Runtime; without a timeout of its own it has no deadline.
func (r *Runtime) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	timeout := time.Duration(0)
	if req.Timeout > 0 {
		timeout = time.Duration(req.Timeout)*time.Second + callTimeout
	}
	return call(ctx, timeout, r.runtime.ExecSync, req)
}

// PullImage implements runtime.Runtime.
func (r *Runtime) PullImage(ctx context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	return call(ctx, 0, r.images.PullImage, req)
}

// RunPodSandbox implements runtime.Runtime.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	return call(ctx, sandboxTimeout, r.runtime.RunPodSandbox, req)
}
