package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/klog/v2"

	"carob/internal/base/errkind"
)

const (
	// Objects of usual size fit into one frame of this size.
	streamBuffer = 256 << 10
	maxStreams   = 1000
	maxHeader    = 1 << 20
	// How long requests in flight may take to finish when the server stops. Watches end at once:
	// their clients reconnect.
	drainTime = 2 * time.Second
)

// serve answers the listener until ctx ends, then closes it.
func (s *Server) serve(ctx context.Context) error {
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	server := &http.Server{
		Handler:           s.handler,
		TLSConfig:         s.tlsConfig(),
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: 32 * time.Second,
		IdleTimeout:       90 * time.Second, // as Go's clients
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       s.unauthenticated.accept,
		ConnState:         s.unauthenticated.changed,
		ErrorLog:          log.New(logWriter{klog.FromContext(ctx)}, "", 0),
	}
	//nolint:staticcheck // net/http's own HTTP/2 is another implementation until Go 1.27, which was not measured
	if err := http2.ConfigureServer(server,
		&http2.Server{IdleTimeout: server.IdleTimeout, MaxConcurrentStreams: maxStreams,
			MaxUploadBufferPerStream: streamBuffer, MaxReadFrameSize: streamBuffer,
			MaxUploadBufferPerConnection: streamBuffer * 100}); err != nil {
		return err
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		drain, done := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer done()
		time.AfterFunc(drainTime/10, cut)
		if server.Shutdown(drain) != nil {
			_ = server.Close() // the remaining requests have had their time
		}
	}()
	err := server.ServeTLS(s.cfg.Listener, "", "")
	if !errors.Is(err, http.ErrServerClosed) {
		return errkind.Errorf(errkind.Unavailable, "serve the API on %s: %w", s.cfg.Listener.Addr(), err)
	}
	<-stopped
	return nil
}

func (s *Server) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: s.cfg.PKI.Serving.Serve,
		// A client without a certificate may have a token; the authenticator verifies both.
		ClientAuth: tls.RequestClientCert,
		ClientCAs:  s.cfg.PKI.Pool,
		NextProtos: []string{"h2", "http/1.1"},
	}
}

// logWriter discards net/http's messages about its clients.
type logWriter struct{ log klog.Logger }

var _ io.Writer = logWriter{}

func (w logWriter) Write(p []byte) (int, error) {
	w.log.V(4).Info("HTTP server", "message", string(p))
	return len(p), nil
}
