package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"time"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/gateway/accesslog"
	"carob/internal/gateway/certs"
	"carob/internal/gateway/forward"
	"carob/internal/gateway/server"
)

// streamFor finds the stream for a name; nil: there is none.
func (s *site) streamFor(name string) *gatewayplan.Stream {
	if i := s.names.Find(name); i >= 0 {
		return &s.streams[i]
	}
	return nil
}

// pass connects a client with a backend until both have ended. The caller has entered the site, which pass leaves.
func (s *site) pass(ctx context.Context, c net.Conn, to *gatewayplan.Stream, seen *forward.Record) {
	defer c.Close()
	seen.Client = c.RemoteAddr().String()
	target, client, conn := s.meet(ctx, c, to, seen)
	s.leave()
	defer seen.End()
	if conn == nil {
		reject(c)
		return
	}
	defer target.end()
	defer conn.Close()
	seen.Connections.Add(1)
	forward.Relay(ctx, client, conn, seen)
}

// meet finds an endpoint for a client, and terminates its TLS if the route requires it. Without an endpoint it returns
// no connection.
func (s *site) meet(ctx context.Context, c net.Conn, to *gatewayplan.Stream,
	seen *forward.Record) (*Target, net.Conn, net.Conn) {
	b := to.Rule.Choose(randomBelow(to.Rule.TotalWeight()))
	if b == nil || b.Invalid != "" {
		why := "the route has no backend with a weight"
		if b != nil {
			why = b.Invalid
		}
		seen.Problem(why)
		return nil, nil, nil
	}
	protocol := ""
	if to.Terminate {
		secure := tls.Server(c, &tls.Config{MinVersion: tls.VersionTLS12,
			GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				return s.serverTLS(h, spoken(h.SupportedProtos, b.Protocol)...)
			}})
		timed, cancel := context.WithTimeout(ctx, forward.HelloTime)
		defer cancel()
		if err := secure.HandshakeContext(timed); err != nil {
			seen.Problem("TLS: " + accesslog.Text(err.Error()))
			return nil, nil, nil
		}
		c, protocol = secure, secure.ConnectionState().NegotiatedProtocol
	}
	target, conn := s.connect(ctx, "tcp", b, protocol, seen)
	return target, c, conn
}

// spoken is what a client may choose (ALPN) where TLS ends before a backend that gets the bytes of the client. One that
// offers one protocol speaks no other. Of several, HTTP/2 is that of a Service that says so; without a choice, clients
// of HTTP speak HTTP/1.1.
func spoken(offered []string, by httproute.Protocol) []string {
	switch {
	case len(offered) == 1:
		return offered
	case by == httproute.H2C && slices.Contains(offered, "h2"):
		return []string{"h2"}
	}
	return nil
}

// connect connects to the first endpoint that accepts a connection. protocol is the one that the client chose; empty:
// unknown.
func (s *site) connect(ctx context.Context, network string, b *httproute.Backend, protocol string,
	seen *forward.Record) (*Target, net.Conn) {
	p, known := s.pools.Get(b.Ref)
	if !known {
		seen.Problem("the backend has gone")
		return nil, nil
	}
	targets, err := p.pick.Pick(ctx, &Facts{Backend: b}, *p.endpoints.Load())
	if err != nil || len(targets) == 0 {
		seen.Problem("no endpoint is ready")
		return nil, nil
	}
	for _, t := range targets {
		if !t.begin() {
			continue
		}
		seen.Tried(b, t.Address.String())
		conn, err := dial(ctx, network, t.Address.String())
		if err == nil && b.TLS == nil {
			return t, conn
		}
		if err == nil {
			if conn, err = encrypt(ctx, conn, b.TLS, protocol); err == nil {
				return t, conn
			}
			t.end()
			seen.Problem("TLS to the backend: " + accesslog.Text(err.Error()))
			return nil, nil
		}
		t.end()
	}
	seen.Problem("no endpoint can be connected to")
	return nil, nil
}

// encrypt begins TLS on a connection to a backend, for a protocol, if it is not empty. It closes the connection when
// this fails.
func encrypt(ctx context.Context, c net.Conn, by *httproute.BackendTLS, protocol string) (net.Conn, error) {
	cfg, err := certs.Backend(by)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	if protocol != "" {
		cfg.NextProtos = []string{protocol}
	}
	secure := tls.Client(c, cfg)
	timed, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := secure.HandshakeContext(timed); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("verify the backend: %w", err)
	}
	return secure, nil
}

// lead sets the streams of a site.
func (s *site) lead(p *gatewayplan.Port) {
	s.streams, s.names = p.Streams, gatewayplan.IndexStreams(p.Streams)
}

// reject closes a connection with a TCP reset, so that the client gets an error.
func reject(c net.Conn) {
	under := c
	for {
		switch w := under.(type) {
		case *server.Counted:
			under = w.Conn
			continue
		case interface{ Raw() net.Conn }: // of proxyheader
			under = w.Raw()
			continue
		case *net.TCPConn:
			_ = w.SetLinger(0)
		}
		_ = c.Close()
		return
	}
}

// stream records a connection of a route.
func (t *telemetry) stream(protocol string, to *gatewayplan.Stream) *forward.Record {
	of := t.figures.route(keyOf(&to.Source))
	r := &forward.Record{Protocol: protocol, Source: &to.Source, Rule: to.Rule.Name, Began: time.Now(), BytesIn: of.in,
		BytesOut: of.out, Connections: of.streams, Retries: of.retries}
	if t.log != nil {
		r.Log = func(line *forward.Line) {
			line.Time, line.Host = r.Began.UTC().Format(accesslog.Time), accesslog.Text(line.Host)
			t.queue(line)
		}
	}
	return r
}
