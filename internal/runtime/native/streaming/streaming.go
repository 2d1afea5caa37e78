// Package streaming is the HTTP server behind the URLs of exec, attach, and port-forward: k8s.io/cri-streaming on the
// loopback address, and a server of its own for port-forward. The composition starts it and passes it to the native
// runtime.
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
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"carob/internal/base/streamguard"
	"carob/internal/runtime/native"
)

// Runtime runs the commands and connects the streams.
type Runtime = streaming.Runtime

// Server returns streaming URLs after New and serves them while Run runs.
type Server struct {
	listener net.Listener
	server   streaming.Server // of exec and attach
	rt       Runtime
	base     *url.URL
	requests requests
	every    time.Duration // lookEvery, but in tests
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
	base := &url.URL{Scheme: "http", Host: config.Addr, Path: "/" + rand.Text() + "/"}
	config.BaseURL = base
	s, err := streaming.NewServer(config, rt)
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("make streaming server: %w", err)
	}
	return &Server{listener: l, server: s, rt: rt, base: base, every: lookEvery}, nil
}

// Run serves until ctx ends; open streams are then closed.
func (s *Server) Run(ctx context.Context) error {
	// No timeouts: a stream lasts as long as its command. The handler limits the time of creating
	// one.
	srv := &http.Server{Handler: s, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve streams: %w", err)
	}
	return nil
}

// ServeHTTP serves a URL once.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r, ok := s.requests.take(path.Base(req.URL.Path))
	if !ok || path.Dir(req.URL.Path) != s.base.JoinPath(r.kind).Path {
		http.NotFound(w, req)
		return
	}
	switch {
	case r.kind != kindForward:
		guard := streamguard.New(w, r.streams.Most)
		defer guard.Close()
		if r.kind == kindAttach { // a command continues without its client
			ctx, cancel := guard.Context(req.Context(), r.streams.Stdin, s.every)
			defer cancel()
			req = req.WithContext(ctx)
		}
		s.server.ServeHTTP(guard, req)
	case wsstream.IsWebSocketRequest(req):
		portforward.ServePortForward(w, req, forwarder{s.rt}, r.pod, "", &portforward.V4Options{Ports: r.ports},
			streaming.DefaultConfig.StreamIdleTimeout, portforwardCreation, portforward.SupportedProtocols)
	default:
		serveForward(w, req, s.rt, r.pod, streaming.DefaultConfig.StreamIdleTimeout, s.every)
	}
}

// portforwardCreation is how long a client has for the streams of a forwarded connection.
const portforwardCreation = remotecommand.DefaultStreamCreationTimeout

// forwarder is a Runtime as cri-streaming's WebSocket server calls it.
type forwarder struct{ rt Runtime }

// PortForward implements portforward.PortForwarder.
func (f forwarder) PortForward(ctx context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	return f.rt.PortForward(ctx, pod, port, stream) //nolint:wrapcheck // the client gets it
}

// GetExec implements native.Streaming.
func (s *Server) GetExec(r *cri.ExecRequest) (*cri.ExecResponse, error) {
	resp, err := s.server.GetExec(r)
	if err == nil && !s.requests.add(resp.GetUrl(), request{kind: "exec", streams: streamguard.Streams{
		Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), TTY: r.GetTty()}}) {
		return nil, streaming.NewErrorTooManyInFlight() //nolint:wrapcheck // it has a code
	}
	return resp, err
}

// GetAttach implements native.Streaming.
func (s *Server) GetAttach(r *cri.AttachRequest) (*cri.AttachResponse, error) {
	resp, err := s.server.GetAttach(r)
	if err == nil && !s.requests.add(resp.GetUrl(), request{kind: kindAttach, streams: streamguard.Streams{
		Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), TTY: r.GetTty()}}) {
		return nil, streaming.NewErrorTooManyInFlight() //nolint:wrapcheck // it has a code
	}
	return resp, err
}

// GetPortForward implements native.Streaming.
func (s *Server) GetPortForward(r *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	if r.GetPodSandboxId() == "" {
		return nil, status.Error(codes.InvalidArgument, "missing required pod_sandbox_id")
	}
	u := s.base.JoinPath(kindForward, rand.Text()).String()
	if !s.requests.add(u, request{kind: kindForward, pod: r.GetPodSandboxId(), ports: r.GetPort()}) {
		return nil, streaming.NewErrorTooManyInFlight() //nolint:wrapcheck // it has a code
	}
	return &cri.PortForwardResponse{Url: u}, nil
}
