// Package grpcstream serves bidirectional gRPC streams over HTTP/2. It bounds what google.golang.org/grpc does not: the
// bytes of all messages that have begun to arrive, and the time in which a client must send or take a message.
package grpcstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits of a server. All are above 0.
type Limits struct {
	Streams     int           // at once, of all clients
	Connections int           // at once
	Message     int           // bytes of one message
	Messages    int64         // bytes of all messages that arrive or are in use; see Stream.Free
	MessageTime time.Duration // from the first byte of a message to its last, in either direction
	StreamTime  time.Duration // of a stream
}

// Limits of connections. What a client may send of a stream before the server reads it is streamWindow; with
// connectionWindow, the most that net/http permits, 63 streams that are not read do not stop the others.
const (
	streamWindow     = 64 << 10
	connectionWindow = 4<<20 - 1
	streamsOfOne     = 1024 // of a connection
	headerBytes      = 16 << 10
	handshakeTime    = 10 * time.Second
	pingAfter        = 2 * time.Minute
	pingTime         = 20 * time.Second
)

// Method serves one stream. Errors become the status of the stream.
type Method func(*Stream) error

// Server serves methods by their paths, such as /grpc.health.v1.Health/Check.
type Server struct {
	Limits  Limits
	Methods map[string]Method

	open     atomic.Int64
	budget   budget
	handlers sync.WaitGroup
}

// Open is how many streams are open.
func (s *Server) Open() int64 { return s.open.Load() }

// Serve serves until ctx is done, closes ln, and returns when all streams have ended. secure is nil for connections
// without TLS. It is called once.
func (s *Server) Serve(ctx context.Context, ln net.Listener, secure *tls.Config) error {
	s.budget.left = s.Limits.Messages
	server := &http.Server{Handler: s, MaxHeaderBytes: headerBytes, ReadHeaderTimeout: handshakeTime,
		ErrorLog: log.New(io.Discard, "", 0), BaseContext: func(net.Listener) context.Context { return ctx },
		Protocols: &http.Protocols{}, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streamsOfOne,
			MaxReceiveBufferPerConnection: connectionWindow, MaxReceiveBufferPerStream: streamWindow,
			SendPingTimeout: pingAfter, PingTimeout: pingTime}}
	ln = netutil.LimitListener(ln, s.Limits.Connections)
	if secure == nil {
		server.Protocols.SetUnencryptedHTTP2(true)
	} else {
		server.Protocols.SetHTTP2(true)
		server.TLSConfig = secure.Clone()
		server.TLSConfig.NextProtos = []string{"h2"}
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	var err error
	if secure == nil {
		err = server.Serve(ln)
	} else {
		err = server.ServeTLS(ln, "", "")
	}
	_ = server.Close()
	s.handlers.Wait()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it was to stop
	}
	return fmt.Errorf("serve gRPC: %w", err)
}

// ServeHTTP implements http.Handler: it serves a stream.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.handlers.Add(1)
	defer s.handlers.Done()
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if r.ProtoMajor != 2 || r.Method != http.MethodPost ||
		kind != "application/grpc" && kind != "application/grpc+proto" {
		http.Error(w, http.StatusText(http.StatusUnsupportedMediaType), http.StatusUnsupportedMediaType)
		return
	}
	limit, why := s.Limits.StreamTime, errLife
	if own, ok := timeout(r.Header.Get("Grpc-Timeout")); ok && own < limit {
		limit, why = own, errTimeout
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), limit, why)
	defer cancel()
	stream := &Stream{ctx: ctx, server: s, request: r, writer: w, control: http.NewResponseController(w)}
	defer context.AfterFunc(ctx, func() { stream.stop(context.Cause(ctx)) })()
	defer s.open.Add(-1)
	stream.finish(s.call(stream, s.open.Add(1)))
}

func (s *Server) call(stream *Stream, open int64) error {
	method := s.Methods[stream.request.URL.Path]
	switch {
	case method == nil:
		return status.Error(codes.Unimplemented, "the method is not served")
	case open > int64(s.Limits.Streams):
		return status.Error(codes.ResourceExhausted, "too many requests at once")
	}
	return method(stream)
}

// timeout reads how long the client waits: at most eight digits and a unit.
func timeout(text string) (time.Duration, bool) {
	if len(text) < 2 || len(text) > 9 {
		return 0, false
	}
	unit, ok := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond,
		'u': time.Microsecond, 'n': time.Nanosecond}[text[len(text)-1]]
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	if !ok || err != nil {
		return 0, false
	}
	if unit == time.Hour {
		n = min(n, 1<<20) // above, the product overflows
	}
	return time.Duration(n) * unit, true //nolint:gosec // below 2^32
}
