// Package streaming is the HTTP server behind the URLs of exec, attach, and port-forward:
// k8s.io/cri-streaming on the loopback address. The composition starts it and passes it to the
// native runtime.
//
// A URL is valid once, for one minute. The server must never listen beyond the loopback address,
// and its paths begin with a secret of this process, so that other users of the host cannot guess a
// URL.
package streaming

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"carob/internal/runtime/native"
)

// Runtime runs the commands and connects the streams.
type Runtime = streaming.Runtime

// Server returns streaming URLs after New and serves them while Run runs.
type Server struct {
	listener net.Listener
	server   streaming.Server
}

var _ native.Streaming = (*Server)(nil)

// New listens on a free port of 127.0.0.1.
func New(rt Runtime) (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for streams: %w", err)
	}
	config := streaming.DefaultConfig
	config.Addr = l.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: config.Addr, Path: "/" + rand.Text() + "/"}
	s, err := streaming.NewServer(config, rt)
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("make streaming server: %w", err)
	}
	return &Server{listener: l, server: s}, nil
}

// Run serves until ctx ends; open streams are then closed.
func (s *Server) Run(ctx context.Context) error {
	// No timeouts: a stream lasts as long as its command. The handler limits the time of creating
	// one.
	srv := &http.Server{Handler: s.server, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve streams: %w", err)
	}
	return nil
}

// GetExec implements native.Streaming.
func (s *Server) GetExec(r *cri.ExecRequest) (*cri.ExecResponse, error) { return s.server.GetExec(r) }

// GetAttach implements native.Streaming.
func (s *Server) GetAttach(r *cri.AttachRequest) (*cri.AttachResponse, error) {
	return s.server.GetAttach(r)
}

// GetPortForward implements native.Streaming.
func (s *Server) GetPortForward(r *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	return s.server.GetPortForward(r)
}
