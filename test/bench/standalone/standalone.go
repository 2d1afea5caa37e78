// Package standalone starts an API server of carob in this process, without agents, controllers and scheduler. The
// benchmarks use it.
package standalone

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"carob/internal/apiserver"
	"carob/internal/base/pki"
)

// Server is an API server that serves.
type Server struct {
	*apiserver.Server
	Kubeconfig string // the file of an administrator, in the server's directory
}

// Start starts a server with its data in dir, which does not wait for the disk. It serves until stop is called.
func Start(ctx context.Context, dir string) (s *Server, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	keys, err := pki.Open(pki.Config{Dir: filepath.Join(dir, "pki"), ServiceIP: apiserver.FirstServiceIP(nil).AsSlice(),
		NodeName: "none"}, time.Now())
	if err != nil {
		return nil, nil, err
	}
	server, err := apiserver.New(ctx, apiserver.Config{DataDir: dir, Listener: l, PKI: keys, UnsafeNoFsync: true,
		Profiling: true})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	stop = func() { cancel(); <-done }
	select {
	case <-server.Ready():
	case err := <-done:
		cancel()
		return nil, nil, errors.Join(errors.New("the API server ended"), err)
	}
	s = &Server{server, filepath.Join(dir, "kubeconfig")}
	if err := os.WriteFile(s.Kubeconfig,
		pki.Kubeconfig("bench", "https://"+l.Addr().String(), keys.CAPEM, keys.Admin.Pair()), 0o600); err != nil {
		stop()
		return nil, nil, err
	}
	return s, stop, nil
}
