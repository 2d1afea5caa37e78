// Package criserver serves any runtime.Runtime as CRI v1 over gRPC on a unix socket, for crictl,
// critest, and other agents. It adds nothing and decides nothing; the composition starts it.
package criserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/errkind"
	"carob/internal/runtime"
)

// maxMessage is the largest message in bytes that CRI clients expect to be able to send and
// receive.
const maxMessage = 16 << 20

// itemsPerMessage is how many list items one message of a stream carries.
const itemsPerMessage = 200

// Server is CRI v1 in front of a runtime.
type Server struct {
	runtime runtimeService
	images  imageService
}

// The embedded services of gRPC are one level deeper than the runtime, so that they only answer
// calls that the contract lacks.
type (
	otherRuntimeCalls struct {
		cri.UnimplementedRuntimeServiceServer
	}
	otherImageCalls struct {
		cri.UnimplementedImageServiceServer
	}

	runtimeService struct {
		otherRuntimeCalls
		runtime.Runtime
	}
	imageService struct {
		otherImageCalls
		runtime.Images
	}
)

// CheckpointContainer works if the runtime is a Checkpointer; else it is Unimplemented.
func (s runtimeService) CheckpointContainer(ctx context.Context, req *cri.CheckpointContainerRequest) (
	*cri.CheckpointContainerResponse, error) {
	return runtime.Checkpoint(ctx, s.Runtime, req)
}

// New creates a server for rt.
func New(rt runtime.Runtime) *Server {
	return &Server{runtimeService{Runtime: rt}, imageService{Images: rt}}
}

// Listen opens the unix socket with the given mode (0600, or 0660 for a group); it replaces a
// socket left by a dead process. The error has the kind InUse if a process answers on it.
func Listen(path string, mode fs.FileMode) (net.Listener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
		return nil, errkind.Errorf(errkind.InUse, "another process serves %s", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket == 0 {
		return nil, errkind.Errorf(errkind.Invalid, "%s exists and is not a socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("replace socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for CRI: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("protect CRI socket: %w", err)
	}
	return l, nil
}

// Run serves on l until ctx ends; calls in progress are then cancelled.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any,
			error) {
			resp, err := next(ctx, req)
			return resp, coded(err)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
			next grpc.StreamHandler) error {
			return coded(next(srv, stream))
		}))
	cri.RegisterRuntimeServiceServer(g, &s.runtime)
	cri.RegisterImageServiceServer(g, &s.images)
	stop := context.AfterFunc(ctx, g.Stop)
	defer stop()
	if err := g.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve CRI: %w", err)
	}
	return nil
}

// coded gives an error without a gRPC code the best matching one.
func coded(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	return status.Error(codes.Unknown, err.Error())
}

// inParts sends items in messages of bounded size, none for no items.
func inParts[T any](items []T, send func([]T) error) error {
	for len(items) > 0 {
		n := min(len(items), itemsPerMessage)
		if err := send(items[:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}
