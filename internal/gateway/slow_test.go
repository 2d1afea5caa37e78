package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"carob/internal/core/gatewayplan/endpoints"
	"carob/internal/core/httproute"
	"carob/internal/gateway/certs"
	"carob/internal/gateway/http1"
)

// pipes is a listener without sockets, for virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// slowLab serves requests for every host with a handler, in virtual time.
func slowLab(t *testing.T, backend http.HandlerFunc) (front *pipes, stop func()) {
	t.Helper()
	return slowPool(t, nil, backend)
}

// slowPool is slowLab for the pool of a picker; nil: for a Service.
func slowPool(t *testing.T, by *served, backend http.HandlerFunc) (front *pipes, stop func()) {
	t.Helper()
	g := New(Config{})
	behind := newPipes()
	server := &http.Server{Handler: backend, ReadHeaderTimeout: time.Hour}
	go func() { _ = server.Serve(behind) }()
	ref := httproute.Ref{Namespace: "default", Name: "a", Port: 80}
	p := newPool()
	p.served.Store(by)
	g.traffic.set(p, []endpoints.Endpoint{{Address: netip.MustParseAddrPort("127.0.0.1:1"), Pod: "p"}})
	target := (*p.endpoints.Load())[0]
	dial := func(context.Context, string, string) (net.Conn, error) { return behind.dial(), nil }
	tr := &plain{full: &http.Transport{DialContext: dial}, short: http1.New(http1.Config{Dial: dial,
		MostIdle: idlePerEndpoint, IdleTime: idleTimeout, HeaderBytes: maxAnswerHeader})}
	target.transports = map[mode]*keptTransport{{}: {transport: tr}}
	s := &site{port: 80, certs: certs.New(), pools: newPools().With(ref, p)}
	s.table, _ = httproute.Compile([]httproute.Listener{{Routes: []httproute.Route{{Rules: []httproute.Rule{{
		Matches:  []httproute.Match{{Path: httproute.PathMatch{Kind: httproute.Prefix, Value: "/"}}},
		Backends: []httproute.Backend{{Ref: ref, Weight: 1}}}}}}}})
	front = newPipes()
	port := newPort(t.Context(), netip.AddrPort{}, front, s, &g.open, g.mirrors, g.seen, nil)
	return front, func() {
		port.stop()
		tr.CloseIdleConnections()
		_ = server.Close()
		if n := g.seen.figures.inFlight.Load(); n != 0 {
			t.Errorf("%d requests have not ended", n)
		}
		if n := g.open.Load(); n != 0 {
			t.Errorf("%d connections are open", n)
		}
		if n := target.requests.Load(); n != 0 {
			t.Errorf("the endpoint has %d requests", n)
		}
	}
}

// A client that sends its header slowly, its body, or nothing, or that does not take its answer, is cut off; one that
// goes on, however slowly, is served.
func TestSlowClients(t *testing.T) {
	for what, c := range map[string]struct {
		client func(c net.Conn)
		takes  bool          // what the server sends, as it arrives
		limit  time.Duration // when the server must have closed
	}{
		"no header": {func(net.Conn) {}, true, headerTime},
		"a header that never ends": {func(c net.Conn) {
			for _, b := range []byte("GET / HTTP/1.1\r\nX: " + strings.Repeat("y", 1000)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}, true, headerTime},
		"a body that stops": {func(c net.Conn) {
			_, _ = io.WriteString(c, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nxxx")
		}, true, slowClient + headerTime},
		"a body that nobody wants": {func(c net.Conn) {
			_, _ = io.WriteString(c, "PUT / HTTP/1.1\r\nHost: !\r\nContent-Length: 1000\r\n\r\nxxx")
		}, true, slowClient + headerTime},
		"idle after an answer": {func(c net.Conn) {
			_, _ = io.WriteString(c, "GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
		}, true, keepAlive},
		"an answer that is not taken": {func(c net.Conn) {
			_, _ = io.WriteString(c, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
			_, _ = c.Read(make([]byte, 100))
			time.Sleep(slowClient + headerTime)
		}, false, slowClient + headerTime},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				front, stop := slowLab(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					if r.URL.Path == "/large" {
						w.Header().Set("Content-Length", strconv.Itoa(10000*4096)) // else it is flushed under a lock
						for range 10000 {
							if _, err := w.Write(make([]byte, 4096)); err != nil {
								return
							}
						}
					}
				})
				conn := front.dial()
				began := time.Now()
				ended := make(chan struct{})
				drain := func() { defer close(ended); _, _ = io.Copy(io.Discard, conn) }
				if !c.takes {
					c.client(conn)
					drain()
				} else { // a pipe has no buffer: a write waits for the reader
					go drain()
					c.client(conn)
				}
				<-ended
				if took := time.Since(began); took > c.limit+time.Second {
					t.Errorf("closed after %v, want at most %v", took, c.limit)
				}
				_ = conn.Close()
				stop()
			})
		})
	}
}

func TestSlowButSteady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		front, stop := slowLab(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		conn := front.dial()
		go func() {
			_, _ = io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nConnection: close\r\n\r\n")
			for range 10 {
				time.Sleep(slowClient - 2*time.Second)
				_, _ = io.WriteString(conn, "x")
			}
		}()
		got, err := io.ReadAll(conn)
		if err != nil || !strings.HasSuffix(string(got), strings.Repeat("x", 10)) {
			t.Errorf("%q %v", got, err)
		}
		_ = conn.Close()
		stop()
	})
}
