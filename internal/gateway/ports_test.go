package gateway

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/testwait"
)

// A mistake of the gateway is logged with its stack; the end of a response that is not complete is not. Both end the
// connection of their request only.
func TestPanicsAreLogged(t *testing.T) {
	for _, c := range []struct {
		name   string
		panics any
		logged bool
	}{
		{"nothing", nil, false}, {"an incomplete response", http.ErrAbortHandler, false}, {"a mistake", "index", true},
		{"an error that wraps the other", errors.Join(http.ErrAbortHandler), true},
	} {
		var log strings.Builder
		ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) { log.WriteString(args) }, funcr.Options{}))
		var got any
		func() {
			defer func() { got = recover() }()
			defer logPanic((&http.Request{ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx))
			if c.panics != nil {
				panic(c.panics)
			}
		}()
		var want any
		if c.panics != nil {
			want = http.ErrAbortHandler
		}
		if got != want {
			t.Errorf("%s: the server gets %v, want %v", c.name, got, want)
		}
		if logged := strings.Contains(log.String(), "ports_test.go"); logged != c.logged {
			t.Errorf("%s: logged with a stack: %t, want %t: %s", c.name, logged, c.logged, log.String())
		}
	}
}

// Others learn which ports are open, once for each change.
func TestOpenPortsArePassedOn(t *testing.T) {
	l := newLab(t)
	var passed [][]netip.AddrPort
	l.cfg.Listening = func(tcp, _ []netip.AddrPort) { passed = append(passed, tcp) }
	l.service("web", "")
	l.ingress("web.example", nil, "/=web")
	l.update()
	l.update()
	both := []netip.AddrPort{l.cfg.HTTP, l.cfg.HTTPS}
	slices.SortFunc(both, netip.AddrPort.Compare)
	if len(passed) != 1 || !slices.Equal(passed[0], both) {
		t.Errorf("passed %v, want %v", passed, both)
	}
	l.world.Ingresses = nil
	l.update()
	if len(passed) != 2 || len(passed[1]) != 0 {
		t.Errorf("passed %v, want none in the end", passed)
	}
}

// So they do of ports of UDP.
func TestOpenPortsOfUDPArePassedOn(t *testing.T) {
	at := freePort(t)
	l := newStreamLab(t, gatewayv1.UDPProtocolType, at)
	var passed [][]netip.AddrPort
	l.cfg.Listening = func(_, udp []netip.AddrPort) { passed = append(passed, udp) }
	l.udpService("x", "127.0.0.1:1")
	l.world.UDPRoutes = []*gatewayv1.UDPRoute{udpRoute("r", toService("x", 1))}
	l.update()
	l.update()
	if len(passed) != 1 || !slices.Equal(passed[0], []netip.AddrPort{at}) {
		t.Errorf("passed %v, want %v", passed, at)
	}
	l.world.Gateways = nil
	l.update()
	if len(passed) != 2 || len(passed[1]) != 0 {
		t.Errorf("passed %v, want none in the end", passed)
	}
}

// Clients leave descriptors for others: at the limit, more connections are closed, and more requests on the same
// connection get 503, until others end.
func TestMostConnectionsAndRequests(t *testing.T) {
	answer := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-answer }))
	t.Cleanup(s.Close)
	l := newLab(t)
	l.open.most = 2
	l.service("web", "", at(s.URL, "p1"))
	l.ingress("web.example", nil, "/=web")
	l.update()
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	t.Cleanup(client.CloseIdleConnections)
	status := make(chan int)
	get := func() {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.http, nil)
		r.Host = "web.example"
		res, err := client.Do(r)
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		_ = res.Body.Close()
		status <- res.StatusCode
	}
	for n := range int64(2) {
		go get()
		testwait.For(t, "a request", func() bool { return l.seen.figures.inFlight.Load() == n+1 })
	}
	go get()
	if got := <-status; got != http.StatusServiceUnavailable {
		t.Errorf("a request above the limit: %d", got)
	}
	second, err := net.Dial("tcp", l.http)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	testwait.For(t, "the second connection", func() bool { return l.open.Load() == 2 })
	third, err := net.Dial("tcp", l.http)
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if n, err := third.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("a connection above the limit is not closed")
	}
	close(answer)
	for range 2 {
		if got := <-status; got != http.StatusOK {
			t.Errorf("a request within the limit: %d", got)
		}
	}
	go get()
	if got := <-status; got != http.StatusOK {
		t.Errorf("a request after the others: %d", got)
	}
}
