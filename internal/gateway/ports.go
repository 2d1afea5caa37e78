package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/base/socketstore"
	"carob/internal/core/gatewayplan"
	"carob/internal/gateway/forward"
	"carob/internal/gateway/proxyheader"
	"carob/internal/gateway/server"
	"carob/internal/gateway/spans"
)

// Limits of clients.
const (
	headerTime   = 10 * time.Second  // for the header of a request
	keepAlive    = 120 * time.Second // between two requests
	headerBytes  = 64 << 10
	streamsOfOne = 250 // HTTP/2 streams of one connection at the same time
	drainTime    = 5 * time.Second
	newcomer     = time.Second // how long a port that ends waits for the first request of a connection
)

// port listens on one address. What it serves is replaced without an effect on its connections.
type port struct {
	at      netip.AddrPort
	site    atomic.Pointer[site]
	ln      net.Listener
	server  *http.Server
	plain   *server.Server // of requests without TLS; nil: there are none
	accept  chan net.Conn
	closing chan struct{} // closed when the listener is
	last    chan struct{} // closed when no connection is passed to the HTTP server any more
	open    *opened
	mirrors *mirrors
	seen    *telemetry
	conns   *server.Conns
	proxies []netip.Prefix

	streams sync.WaitGroup
	cancel  context.CancelFunc // ends streams and upgraded connections
	ended   chan struct{}
}

// listen opens a port.
func listen(ctx context.Context, at netip.AddrPort, s *site, open *opened, m *mirrors,
	seen *telemetry, proxies []netip.Prefix, store *socketstore.Store) (*port, error) {
	ln, err := listener(ctx, at, store)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
	return newPort(ctx, at, ln, s, open, m, seen, proxies), nil
}

// SocketPrefix begins the names of the gateway's sockets that a service manager keeps.
const SocketPrefix = "carob-gateway-"

// listener takes over the socket that the previous process left, or opens one.
func listener(ctx context.Context, at netip.AddrPort, store *socketstore.Store) (net.Listener, error) {
	name := socketstore.Name(SocketPrefix, at.String())
	if ln := store.Listener(name, at.String()); ln != nil {
		return ln, nil // the service manager still has it
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	if err := store.Keep(name, ln); err != nil {
		klog.FromContext(ctx).Error(err, "Connections may be refused while carob is restarted", "address", at)
	}
	return ln, nil
}

// newPort serves what a listener accepts.
func newPort(ctx context.Context, at netip.AddrPort, ln net.Listener, s *site, open *opened, m *mirrors,
	seen *telemetry, proxies []netip.Prefix) *port {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &port{at: at, ln: ln, accept: make(chan net.Conn), closing: make(chan struct{}), last: make(chan struct{}),
		open: open, mirrors: m, seen: seen, proxies: proxies, conns: server.NewConns(), cancel: cancel,
		ended: make(chan struct{})}
	p.site.Store(s)
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: headerTime, IdleTimeout: keepAlive,
		MaxHeaderBytes: headerBytes, BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: p.conns.Context, ConnState: p.conns.State,
		ErrorLog: log.New(io.Discard, "", 0), Protocols: &http.Protocols{},
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streamsOfOne, SendPingTimeout: 30 * time.Second,
			PingTimeout: 15 * time.Second, WriteByteTimeout: slowClient, MaxReadFrameSize: 16 << 10,
			MaxReceiveBufferPerConnection: 1 << 20, MaxReceiveBufferPerStream: 256 << 10}}
	p.server.Protocols.SetHTTP1(true)
	p.server.Protocols.SetHTTP2(true)
	p.server.Protocols.SetUnencryptedHTTP2(true)
	if !s.tls {
		p.plain = &server.Server{Handler: p, Pass: p.hand, Context: ctx, HeaderTime: headerTime, IdleTime: keepAlive}
	}
	go p.run(ctx)
	return p
}

func (p *port) run(ctx context.Context) {
	defer close(p.ended)
	go p.acceptAll(ctx)
	var err error
	if p.site.Load().tls {
		p.server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
			GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				return p.site.Load().serverTLS(h, "h2", "http/1.1")
			},
			// Never used; the server requires it.
			GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate,
				error) {
				return p.site.Load().certs.Find(h)
			}}
		err = p.server.ServeTLS(p, "", "")
	} else {
		err = p.server.Serve(p)
	}
	if err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		klog.FromContext(ctx).Error(err, "A port of the gateway has ended", "address", p.at)
	}
}

// acceptAll accepts connections. Those of ports with streams wait for the name that the client requests.
func (p *port) acceptAll(ctx context.Context) {
	defer close(p.closing)
	for {
		c, err := p.ln.Accept()
		if err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() || forward.IsShortage(err) {
				select { // no descriptors: others may end
				case <-ctx.Done():
				case <-time.After(10 * time.Millisecond):
				}
				continue
			}
			return
		}
		if p.open.Add(1) > p.open.most {
			p.open.Add(-1)
			p.seen.figures.refused.Inc()
			_ = c.Close()
			continue
		}
		c = proxyheader.Conn(&server.Counted{Conn: c, Open: &p.open.Int64}, p.proxies, headerTime)
		switch at := p.site.Load(); {
		case at.raw:
			p.streams.Go(func() { p.forward(ctx, c) })
			continue
		case len(at.streams) > 0:
			p.streams.Go(func() { p.sort(ctx, c) })
			continue
		}
		p.begin(c)
	}
}

// begin serves a connection without TLS; others are passed to the HTTP server.
func (p *port) begin(c net.Conn) {
	if direct, ok := c.(*server.Counted); ok && p.plain != nil {
		if tcp, ok := direct.Conn.(*net.TCPConn); ok {
			p.plain.Serve(c, tcp)
			return
		}
	}
	p.hand(c)
}

// hand passes a connection to the HTTP server.
func (p *port) hand(c net.Conn) {
	p.conns.Hand(1)
	select {
	case p.accept <- c:
	case <-p.ended:
		p.conns.Hand(-1)
		_ = c.Close()
	}
}

// sort finds out whether a connection is a stream.
func (p *port) sort(ctx context.Context, c net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	name, again, err := forward.Peek(c)
	if !stop() || err != nil {
		_ = c.Close()
		return
	}
	s := p.enter()
	switch to := s.streamFor(name); {
	case to != nil && !s.moreSpecific(name, to):
		seen := p.seen.stream("TLS", to)
		seen.Host = name
		s.pass(ctx, again, to, seen)
		return
	case !s.certs.Has(name):
		_ = c.Close() // no route has this name; an alert of TLS would reveal that TLS ends here
	default:
		p.hand(again)
	}
	s.leave()
}

// forward connects a connection of a raw port to its route.
func (p *port) forward(ctx context.Context, c net.Conn) {
	s := p.enter()
	if len(s.streams) == 0 {
		s.leave()
		reject(c)
		return
	}
	s.pass(ctx, c, &s.streams[0], p.seen.stream("TCP", &s.streams[0]))
}

// moreSpecific reports whether an HTTPS listener has a name more exactly than a stream.
func (s *site) moreSpecific(name string, to *gatewayplan.Stream) bool {
	return s.certs.Exact(name) && to.Host != name
}

// Accept implements net.Listener.
func (p *port) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.last:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (p *port) Addr() net.Addr { return p.ln.Addr() }

// Close implements net.Listener.
func (p *port) Close() error { return p.ln.Close() }

// ServeHTTP implements http.Handler.
func (p *port) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer logPanic(r)
	w, ended := server.Parts(w, r, slowClient)
	defer ended()
	if one := server.ConnOf(r); one != nil {
		defer one.Serve(r)()
	}
	rec := p.seen.begin(w, r)
	defer p.seen.ended(rec, r)
	if p.seen.spans != nil {
		rec.span, r = spans.Begin(p.seen.spans, r, rec.began)
	}
	if p.seen.figures.inFlight.Load() > p.open.most {
		refuse(rec, r, http.StatusServiceUnavailable)
		return
	}
	s := p.enter()
	defer s.leave()
	s.ServeHTTP(rec, r, p.mirrors)
}

// logPanic logs a panic that is a mistake of the gateway. It ends only the request's connection.
func logPanic(r *http.Request) {
	switch v := recover(); v {
	case nil:
		return
	case http.ErrAbortHandler: // how a response ends that is not complete
	default:
		log := klog.FromContext(r.Context())
		log.Error(fmt.Errorf("panic: %v", v), "A request failed", "stack", string(debug.Stack()))
	}
	if one := server.ConnOf(r); one != nil && !r.ProtoAtLeast(1, 1) {
		server.Reset(one.Conn) // the client would take the end of the connection for that of the response
	}
	panic(http.ErrAbortHandler)
}

// stop closes the port and waits for requests in flight, at most for drainTime.
func (p *port) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	_ = p.ln.Close()
	<-p.closing // accepted connections are served
	p.server.SetKeepAlivesEnabled(false)
	plain := make(chan struct{})
	first, end := context.WithTimeout(ctx, newcomer)
	if p.plain != nil {
		p.plain.Drain(first)
	}
	p.conns.Drain(first)
	end()
	close(p.last)
	go func() {
		defer close(plain)
		if p.plain != nil {
			p.plain.Shutdown(ctx)
		}
	}()
	if err := p.server.Shutdown(ctx); err != nil {
		_ = p.server.Close()
	}
	<-plain
	passed := make(chan struct{})
	go func() { p.streams.Wait(); close(passed) }()
	select { // as requests in flight
	case <-passed:
	case <-ctx.Done():
	}
	p.cancel()
	<-p.ended
	<-passed
}
