package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/testwait"
	"carob/internal/gateway/forward"
)

// udpService is a Service whose ports are of UDP, with endpoints as ADDRESS=POD.
func (l *lab) udpService(of string, endpoints ...string) {
	var all []discoveryv1.Endpoint
	for _, e := range endpoints {
		addr, pod, _ := strings.Cut(e, "=")
		all = append(all, at(addr, types.UID(pod)))
	}
	l.service(of, "", all...)
	key := name{Namespace: "default", Name: of}
	l.world.Services[key].Spec.Ports[0].Protocol = corev1.ProtocolUDP
	for _, s := range l.slices[key] {
		s.Ports[0].Protocol = new(corev1.ProtocolUDP)
	}
}

func udpRoute(of string, backends ...gatewayv1.BackendRef) *gatewayv1.UDPRoute {
	r := &gatewayv1.UDPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: of}}
	r.Spec.ParentRefs, r.Spec.Rules = parent(), []gatewayv1.UDPRouteRule{{BackendRefs: backends}}
	return r
}

// udpEcho answers with its name and what it got.
func udpEcho(t *testing.T, who string) string {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(append([]byte(who+" "), b[:n]...), from)
		}
	}()
	return c.LocalAddr().String()
}

// udpClient is a client that takes answers only from whom it sends to.
func udpClient(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// reply sends until a reply to this datagram arrives: datagrams may be lost, and replies to earlier ones may arrive
// late.
func reply(t *testing.T, c net.Conn, text string) (answer string) {
	t.Helper()
	b := make([]byte, 64<<10)
	testwait.For(t, "an answer comes", func() bool {
		if _, err := c.Write([]byte(text)); err != nil {
			return false
		}
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		for {
			n, err := c.Read(b)
			if err != nil {
				return false
			}
			who, rest, _ := strings.Cut(string(b[:n]), " ")
			if rest == text {
				answer = who
				return true
			}
		}
	})
	return answer
}

// Datagrams of a client go to one endpoint, and answers come from where it sent to, also when the port listens on all
// addresses. When the endpoint goes, the client gets another one.
func TestUDP(t *testing.T) {
	for _, host := range []string{"", "0.0.0.0", "::"} {
		t.Run("listens on "+host, func(t *testing.T) {
			to := freePort(t)
			listens := to
			if host != "" {
				listens = netip.AddrPortFrom(netip.MustParseAddr(host), to.Port())
			}
			l := newStreamLab(t, gatewayv1.UDPProtocolType, listens)
			l.leaving = 10 * time.Millisecond
			a, b := udpEcho(t, "a"), udpEcho(t, "b")
			l.udpService("x", a+"=pa", b+"=pb")
			l.world.UDPRoutes = []*gatewayv1.UDPRoute{udpRoute("r", toService("x", 1))}
			l.update()
			clients, met := make([]net.Conn, 8), map[string]int{}
			for i := range clients {
				clients[i] = udpClient(t, to)
				who := reply(t, clients[i], fmt.Sprint("first ", i))
				met[who]++
				for n := range 3 {
					if again := reply(t, clients[i], fmt.Sprint(n, " of ", i)); again != who {
						t.Errorf("client %d was moved from %s to %s", i, who, again)
					}
				}
			}
			if met["a"] == 0 || met["b"] == 0 {
				t.Errorf("endpoints: %v", met)
			}
			if !l.Routed("pa") || figure(t, l, "gateway_udp_sessions", nil) != 8 {
				t.Errorf("%v sessions, a has some: %v", figure(t, l, "gateway_udp_sessions", nil), l.Routed("pa"))
			}
			plan := l.plan
			l.udpService("x", b+"=pb")
			s := l.snapshot()
			s.Changed[name{Namespace: "default", Name: "x"}] = true
			s.Services, s.Slices = l.world.Services, l.slices
			l.Gateway.update(t.Context(), s)
			for i := range clients {
				if who := reply(t, clients[i], "after"); who != "b" || l.plan != plan {
					t.Errorf("client %d is still at %s", i, who)
				}
			}
			testwait.For(t, "the pod of a is free", func() bool { return !l.Routed("pa") })
			if routes := l.Routes("").Routes; len(routes) != 1 || routes[0].Protocol != "UDP" ||
				routes[0].Backends[0].Service != "default/x:80/UDP" {
				t.Errorf("%+v", routes)
			}
		})
	}
}

// An endpoint that refuses is left for another one, the largest datagram passes, and what no backend gets is counted.
func TestUDPBackends(t *testing.T) {
	to := freePort(t)
	l := newStreamLab(t, gatewayv1.UDPProtocolType, to)
	l.udpService("x", "127.0.0.1:1", "127.0.0.1:2", udpEcho(t, "live"))
	l.world.UDPRoutes = []*gatewayv1.UDPRoute{udpRoute("r", toService("x", 1))}
	l.update()
	for i := range 6 {
		if who := reply(t, udpClient(t, to), fmt.Sprint(i)); who != "live" {
			t.Error(who)
		}
	}
	c := udpClient(t, to)
	large := strings.Repeat("x", 65507-len("live "))
	if who := reply(t, c, large); who != "live" {
		t.Error(who)
	}
	if who := reply(t, c, ""); who != "live" { // an empty datagram is one, too
		t.Error(who)
	}
	dropped := func(reason string) float64 {
		return figure(t, l, "gateway_udp_datagrams_dropped_total", map[string]string{"reason": reason})
	}
	l.world.UDPRoutes = []*gatewayv1.UDPRoute{udpRoute("r", toService("none", 1), toService("x", 0))}
	l.update()
	for range 3 { // the same client, who is refused as often as it sends
		before := dropped(forward.NoBackend)
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		testwait.For(t, "it is dropped", func() bool { return dropped(forward.NoBackend) > before })
	}
	l.world.UDPRoutes = []*gatewayv1.UDPRoute{udpRoute("r", toService("x", 1))}
	l.update()
	if who := reply(t, c, "again"); who != "live" {
		t.Error(who)
	}
	s := l.snapshot()
	note(&s.Changes.UDPRoutes, name{Namespace: "default", Name: "r"}, nil)
	l.followed(s)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "nobody has the port", func() bool { return dropped(forward.NoRoute) > 0 })
	l.world.Gateways, l.world.UDPRoutes = nil, nil
	l.update()
	if again, err := net.ListenPacket("udp", to.String()); err != nil || l.sessions.Load() != 0 {
		t.Errorf("the port is open: %v, %d sessions", err, l.sessions.Load())
	} else {
		again.Close()
	}
}

// A UDP port that another process uses is reported, and opened when it is free; a TCP port with the same number does
// not matter.
func TestUDPPortIsTaken(t *testing.T) {
	to := freePort(t)
	other, err := net.ListenPacket("udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l := newStreamLab(t, gatewayv1.UDPProtocolType, to)
	l.world.Gateways[0].Spec.Listeners = append(l.world.Gateways[0].Spec.Listeners, gatewayv1.Listener{Name: "t",
		Port: gatewayv1.PortNumber(to.Port()), Protocol: gatewayv1.TCPProtocolType})
	l.service("t", "", at(tcpEcho(t, "tcp"), "pt"))
	l.udpService("x", udpEcho(t, "live"))
	l.world.UDPRoutes = []*gatewayv1.UDPRoute{udpRoute("r", toService("x", 1))}
	l.world.TCPRoutes = []*gatewayv1.TCPRoute{tcpRoute("r", toService("t", 1)), tcpRoute("s", toService("t", 1))}
	l.update()
	if l.failedUDP[to] == "" || !l.anyFailed() {
		t.Error("the port is taken")
	}
	reasons := map[string]bool{}
	for _, p := range l.Routes("").Problems {
		reasons[p.Kind+" "+p.Name+" "+p.Reason] = true
	}
	if !reasons["port "+to.String()+"/UDP PortUnavailable"] || !reasons["TCPRoute s OlderRoute"] {
		t.Errorf("%v", reasons)
	}
	if _, _, who := dialNamed(t, to); who != "tcp" {
		t.Error(who)
	}
	other.Close()
	l.update()
	if who := reply(t, udpClient(t, to), "x"); who != "live" || l.anyFailed() {
		t.Error(who, l.failedUDP)
	}
}

// While carob is replaced, the port of UDP stays open: a datagram that comes in between is answered by the next
// process.
func TestUDPSurvivesARestart(t *testing.T) {
	m := newManager(t)
	to := freePort(t)
	echo := udpEcho(t, "a")
	start := func() *lab {
		l := newStreamLab(t, gatewayv1.UDPProtocolType, to)
		l.cfg.Sockets = m.next(t)
		l.udpService("x", echo+"=pa")
		l.world.UDPRoutes = []*gatewayv1.UDPRoute{udpRoute("r", toService("x", 1))}
		l.update()
		return l
	}
	old := start()
	testwait.For(t, "the socket at the service manager", func() bool { return m.has("udp-" + to.String()) })
	c := udpClient(t, to)
	reply(t, c, "before")
	old.stop()
	if _, err := c.Write([]byte("between")); err != nil {
		t.Fatal(err)
	}
	next := start()
	_ = c.SetReadDeadline(time.Now().Add(testwait.Limit))
	b := make([]byte, 100)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "a between" {
		t.Errorf("%q, %v", b[:n], err)
	}
	next.world.UDPRoutes, next.world.Gateways = nil, nil
	next.update()
	testwait.For(t, "the socket to be forgotten", func() bool { return !m.has("udp-" + to.String()) })
}
