package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
)

// stream is a host name whose TLS connections are passed to backends.
type stream struct{ gatewayplan.Stream }

// helloTime is how long a client may take for the first message of TLS.
const helloTime = 10 * time.Second

var errSeen = errors.New("the name was seen")

// peek reads the requested server name, and returns a connection from which nothing has been
// read.
func peek(c net.Conn) (string, net.Conn, error) {
	_ = c.SetReadDeadline(time.Now().Add(helloTime))
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	var seen bytes.Buffer
	name := ""
	err := tls.Server(readOnly{io.TeeReader(c, &seen), c}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name = h.ServerName
			return nil, errSeen
		}}).HandshakeContext(context.Background())
	if !errors.Is(err, errSeen) {
		return "", nil, err
	}
	return strings.ToLower(name), &replayed{Conn: c, rest: io.MultiReader(&seen, c)}, nil
}

// readOnly is a connection on which nothing is said.
type readOnly struct {
	io.Reader
	net.Conn
}

func (r readOnly) Read(p []byte) (int, error)       { return r.Reader.Read(p) }
func (r readOnly) Write([]byte) (int, error)        { return 0, io.ErrClosedPipe }
func (r readOnly) Close() error                     { return nil }
func (r readOnly) SetDeadline(time.Time) error      { return nil }
func (r readOnly) SetReadDeadline(time.Time) error  { return nil }
func (r readOnly) SetWriteDeadline(time.Time) error { return nil }

// replayed is a connection whose first bytes are read again.
type replayed struct {
	net.Conn
	rest io.Reader
}

func (r *replayed) Read(p []byte) (int, error) { return r.rest.Read(p) }

// streamFor finds the stream for a name: exact, then the longest wildcard, then all.
func (s *site) streamFor(name string) *stream {
	var best *stream
	for i := range s.streams {
		host := s.streams[i].Host
		suffix, wild := strings.CutPrefix(host, "*")
		switch {
		case host == name:
			return &s.streams[i]
		case host == "" || wild && len(name) > len(suffix) && strings.HasSuffix(name, suffix):
			if best == nil || len(host) > len(best.Host) {
				best = &s.streams[i]
			}
		}
	}
	return best
}

// pass connects a client with a backend until both have ended.
func (s *site) pass(ctx context.Context, c net.Conn, to *stream) {
	defer c.Close()
	b := to.Rule.Choose(randomBelow(to.Rule.TotalWeight()))
	if b == nil || b.Invalid != "" {
		return
	}
	if to.Terminate {
		secure := tls.Server(c, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: s.serverTLS})
		timed, cancel := context.WithTimeout(ctx, helloTime)
		err := secure.HandshakeContext(timed)
		cancel()
		if err != nil {
			return
		}
		c = secure
	}
	target, conn := s.connect(ctx, b)
	if conn == nil {
		return
	}
	defer target.end()
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close(); _ = conn.Close() })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { half(conn, c) })
	half(c, conn)
	wg.Wait()
}

func (s *site) connect(ctx context.Context, b *httproute.Backend) (*Target, net.Conn) {
	p, known := s.pools.Get(b.Ref)
	if !known {
		return nil, nil
	}
	targets, err := p.pick.Pick(ctx, &Facts{Backend: b}, *p.endpoints.Load())
	if err != nil {
		return nil, nil
	}
	for _, t := range targets {
		if !t.begin() {
			continue
		}
		conn, err := dial(ctx, "tcp", t.Address.String())
		if err == nil {
			return t, conn
		}
		t.end()
	}
	return nil, nil
}

// half copies one direction, then announces the end to the other side.
func half(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if w, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = w.CloseWrite()
		return
	}
	_ = to.Close()
	_ = from.Close()
}
