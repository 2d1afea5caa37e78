// Package criserver serves any runtime.Runtime as CRI v1 on a unix socket, so
// that crictl, critest and other agents can use it. It translates and decides
// nothing; the composition runs it.
package criserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
)

// maxMessage is the size of a request or an answer that the server takes.
const maxMessage = 16 << 20

// Server is a CRI server on one socket.
type Server struct {
	path string
	grpc *grpc.Server
}

// New makes a server for rt; Run listens. Only root may open the socket.
func New(rt runtime.Runtime, path string) *Server {
	s := &Server{path: path, grpc: grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))}
	cri.RegisterRuntimeServiceServer(s.grpc, runtimeService{Runtime: rt})
	cri.RegisterImageServiceServer(s.grpc, imageService{Images: rt})
	return s
}

// Run serves until ctx ends; calls in flight are cancelled then.
func (s *Server) Run(ctx context.Context) error {
	l, err := listen(s.path)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, s.grpc.Stop)
	defer stop()
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve CRI: %w", err)
	}
	return nil
}

// listen takes over the socket of an earlier process: the data directory's lock
// says that there is no other.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make directory of the CRI socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old CRI socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on CRI socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("protect CRI socket: %w", err)
	}
	return l, nil
}

// runtimeService answers what the runtime has; the rest of CRI is Unimplemented.
type runtimeService struct {
	cri.UnimplementedRuntimeServiceServer
	runtime.Runtime
}

type imageService struct {
	cri.UnimplementedImageServiceServer
	runtime.Images
}

func (s runtimeService) GetContainerEvents(_ *cri.GetEventsRequest, out grpc.ServerStreamingServer[cri.ContainerEventResponse]) error {
	ctx, cancel := context.WithCancelCause(out.Context())
	defer cancel(nil)
	err := s.Runtime.ContainerEvents(ctx, func(ev *cri.ContainerEventResponse) {
		if err := out.Send(ev); err != nil {
			cancel(err)
		}
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
