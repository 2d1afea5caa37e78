package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
	"carob/internal/gateway/certs"
	"carob/internal/gateway/feed"
	"carob/internal/gateway/forward"
)

// newStreamLab has a Gateway with a listener of a protocol, at an address of its own.
func newStreamLab(t *testing.T, protocol gatewayv1.ProtocolType, at netip.AddrPort) *lab {
	t.Helper()
	l := newLab(t)
	l.gateway(protocol, at)
	return l
}

// gateway adds a Gateway with a listener of a protocol, at an address of its own.
func (l *lab) gateway(protocol gatewayv1.ProtocolType, at netip.AddrPort) {
	l.cfg.Host = func() []netip.Addr { return []netip.Addr{at.Addr()} }
	g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gw"}}
	g.Spec.GatewayClassName = gatewayplan.Class
	g.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: at.Addr().String()}}
	g.Spec.Listeners = []gatewayv1.Listener{{Name: "l", Port: gatewayv1.PortNumber(at.Port()), Protocol: protocol}}
	class := &gatewayv1.GatewayClass{}
	class.Name, class.Spec.ControllerName = gatewayplan.Class, gatewayplan.GatewayController
	l.world.GatewayClasses, l.world.Gateways = []*gatewayv1.GatewayClass{class}, []*gatewayv1.Gateway{g}
}

func parent() []gatewayv1.ParentReference { return []gatewayv1.ParentReference{{Name: "gw"}} }

func toService(of string, weight int32) gatewayv1.BackendRef {
	ref := gatewayv1.BackendRef{Weight: &weight}
	ref.Name, ref.Port = gatewayv1.ObjectName(of), new(gatewayv1.PortNumber(80))
	return ref
}

func tcpRoute(of string, backends ...gatewayv1.BackendRef) *gatewayv1.TCPRoute {
	r := &gatewayv1.TCPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: of}}
	r.Spec.ParentRefs, r.Spec.Rules = parent(), []gatewayv1.TCPRouteRule{{BackendRefs: backends}}
	return r
}

// tcpEcho responds, after its client's half close, with its name and what it received.
func tcpEcho(t *testing.T, who string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "%s\n", who)
				text, _ := io.ReadAll(c)
				_, _ = c.Write(text)
			}()
		}
	}()
	return ln.Addr().String()
}

// dialNamed connects, and returns the connection with the name of the backend.
func dialNamed(t *testing.T, at netip.AddrPort) (net.Conn, *bufio.Reader, string) {
	t.Helper()
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		return nil, nil, "error: " + err.Error()
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	r := bufio.NewReader(c)
	who, err := r.ReadString('\n')
	if err != nil {
		return c, r, "error: " + err.Error()
	}
	return c, r, strings.TrimSpace(who)
}

// TCP goes to the route's backend: both directions end by themselves, an endpoint that cannot be connected to is
// skipped, and more than the buffers hold goes through.
func TestTCP(t *testing.T) {
	at80 := freePort(t)
	l := newStreamLab(t, gatewayv1.TCPProtocolType, at80)
	l.service("a", "", at("127.0.0.1:1", "closed"), at(tcpEcho(t, "a"), "pa"))
	l.world.TCPRoutes = []*gatewayv1.TCPRoute{tcpRoute("r", toService("a", 1), toService("none", 0))}
	l.update()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for range 4 {
		c, r, who := dialNamed(t, at80)
		if who != "a" {
			t.Fatal(who)
		}
		go func() {
			_, _ = c.Write(sent)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came back, %v", len(got), err)
		}
	}
	if got := figure(t, l, "gateway_stream_connections_total", map[string]string{"kind": "TCPRoute", "name": "r"}); got != 4 {
		t.Errorf("%v connections", got)
	}
	if got := figure(t, l, "gateway_body_bytes_total", map[string]string{"direction": "in", "name": "r"}); got !=
		float64(4*len(sent)) {
		t.Errorf("%v bytes", got)
	}
	routes := l.Routes("default").Routes
	if len(routes) != 1 || routes[0].Protocol != "TCP" || routes[0].Kind != "TCPRoute" ||
		len(routes[0].Backends[0].Endpoints) != 2 {
		t.Errorf("%+v", routes)
	}
}

// Connections that are not served are reset, not left open: no route, an invalid backend, no endpoint.
func TestTCPIsRefused(t *testing.T) {
	at80 := freePort(t)
	l := newStreamLab(t, gatewayv1.TCPProtocolType, at80)
	log := filepath.Join(t.TempDir(), "log")
	l.seen.log = newAccessLog(log, l.seen.figures)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { l.seen.log.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	l.service("empty", "")
	refused := func(what string) {
		t.Helper()
		c, err := net.Dial("tcp", at80.String())
		if err == nil {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(30 * time.Second))
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v", what, err)
		}
	}
	l.update()
	refused("no route")
	for _, of := range []string{"none", "empty"} {
		l.world.TCPRoutes = []*gatewayv1.TCPRoute{tcpRoute("r", toService(of, 1))}
		l.update()
		refused(of)
	}
	var problems []string
	for _, line := range streamLines(t, log, 2) {
		if line.Route != "TCPRoute/default/r" || line.Protocol != "TCP" {
			t.Errorf("the log: %+v", line)
		}
		problems = append(problems, line.Problem)
	}
	slices.Sort(problems)
	if !slices.Equal(problems, []string{"Service default/none does not exist", "no endpoint is ready"}) {
		t.Errorf("%q", problems)
	}
}

// A connection outlives changes of its route. A pod that stops keeps those that it has, and gets no new one.
func TestTCPDrains(t *testing.T) {
	at80 := freePort(t)
	l := newStreamLab(t, gatewayv1.TCPProtocolType, at80)
	l.service("a", "", at(tcpEcho(t, "a"), "pa"))
	l.service("b", "", at(tcpEcho(t, "b"), "pb"))
	l.world.TCPRoutes = []*gatewayv1.TCPRoute{tcpRoute("r", toService("a", 1))}
	l.update()
	plan := l.plan
	c, r, who := dialNamed(t, at80)
	changed := tcpRoute("r", toService("b", 1))
	s := l.snapshot()
	note(&s.Changes.TCPRoutes, nameOf(changed), changed)
	if l.followed(s); l.plan != plan {
		t.Error("there is a new plan")
	}
	if _, _, now := dialNamed(t, at80); who != "a" || now != "b" {
		t.Errorf("connected to %s, then to %s", who, now)
	}
	if !l.Routed("pa") {
		t.Error("the pod of a has a connection")
	}
	_, _ = c.Write([]byte("still here"))
	_ = c.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(r); err != nil || string(got) != "still here" {
		t.Errorf("%q, %v", got, err)
	}
	testwait.For(t, "the pod of a is free", func() bool { return !l.Routed("pa") })
	s = l.snapshot()
	note(&s.Changes.TCPRoutes, nameOf(changed), nil)
	l.followed(s)
	if _, _, who := dialNamed(t, at80); !strings.Contains(who, "reset") {
		t.Errorf("without a route: %s", who)
	}
	if got := series(t, l, "gateway_stream_connections_total"); len(got) != 0 {
		t.Errorf("figures of a route that has gone: %v", got)
	}
}

// snapshot is one without changes, of the lab's Services.
func (l *lab) snapshot() *feed.Snapshot {
	l.fills()
	return &feed.Snapshot{Changed: map[name]bool{}, Services: map[name]*corev1.Service{},
		Slices: map[name][]*discoveryv1.EndpointSlice{}}
}

// followed has the gateway follow changes.
func (l *lab) followed(s *feed.Snapshot) {
	l.t.Helper()
	if !l.follow(l.t.Context(), s) {
		l.t.Fatal("the whole world is needed")
	}
	l.Gateway.update(l.t.Context(), s)
}

// A TLSRoute and its changes: the server name of the client decides, and the bytes that were read already reach the
// backend.
func TestTLSRoutes(t *testing.T) {
	at443 := freePort(t)
	l := newStreamLab(t, gatewayv1.TLSProtocolType, at443)
	l.world.Gateways[0].Spec.Listeners[0].TLS = &gatewayv1.ListenerTLSConfig{Mode: new(gatewayv1.TLSModePassthrough)}
	cert, err := certs.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	serve := func(who string) string {
		ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*cert}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					if secure, ok := c.(*tls.Conn); ok && secure.Handshake() == nil {
						fmt.Fprintf(c, "%s %s", who, secure.ConnectionState().ServerName)
					}
				}()
			}
		}()
		return ln.Addr().String()
	}
	for _, of := range []string{"a", "b"} {
		l.service(of, "", at(serve(of), types.UID(of)))
	}
	route := func(of, host, service string) *gatewayv1.TLSRoute {
		r := &gatewayv1.TLSRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: of}}
		r.Spec.ParentRefs, r.Spec.Hostnames = parent(), []gatewayv1.Hostname{gatewayv1.Hostname(host)}
		r.Spec.Rules = []gatewayv1.TLSRouteRule{{BackendRefs: []gatewayv1.BackendRef{toService(service, 1)}}}
		return r
	}
	l.world.TLSRoutes = []*gatewayv1.TLSRoute{route("r", "*.example.com", "a")}
	l.update()
	dialed := func(host, want string) {
		t.Helper()
		d := tls.Dialer{Config: &tls.Config{ServerName: host, InsecureSkipVerify: true}}
		c, err := d.DialContext(t.Context(), "tcp", at443.String())
		if err != nil {
			if want != "" {
				t.Errorf("%s: %v", host, err)
			}
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if got, err := io.ReadAll(c); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", host, got, err, want)
		}
	}
	dialed("x.example.com", "a x.example.com")
	dialed("other.org", "")
	plan := l.plan
	s := l.snapshot()
	exact := route("exact", "y.example.com", "b")
	note(&s.Changes.TLSRoutes, nameOf(exact), exact)
	l.followed(s)
	dialed("y.example.com", "b y.example.com")
	dialed("x.example.com", "a x.example.com")
	s = l.snapshot()
	note(&s.Changes.TLSRoutes, nameOf(exact), nil)
	l.followed(s)
	dialed("y.example.com", "a y.example.com")
	if l.plan != plan {
		t.Error("there is a new plan")
	}
}

// streamLines waits for n lines of an access log.
func streamLines(t *testing.T, path string, n int) (out []forward.Line) {
	t.Helper()
	testwait.For(t, "the log has its lines", func() bool {
		text, _ := os.ReadFile(path)
		out = nil
		for line := range strings.Lines(string(text)) {
			var one forward.Line
			if json.Unmarshal([]byte(line), &one) == nil {
				out = append(out, one)
			}
		}
		return len(out) >= n
	})
	return out
}
