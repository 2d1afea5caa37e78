package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"

	"carob/internal/base/testwait"
)

// A model server may speak another protocol with a client, such as WebSocket for speech: both directions pass, and the
// end of such a connection is no failure of the server.
func TestUpgradeThroughAPool(t *testing.T) {
	l := newInferenceLab(t)
	over := make(chan struct{})
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" {
			answering(w, r)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer close(over)
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(conn, rw)
	})
	l.serveNow()
	before := errorsOf(t)
	conn, err := net.Dial("tcp", l.http)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\n"+
		"Upgrade: websocket\r\n\r\n")
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(res, err)
	}
	fmt.Fprint(conn, "hello")
	if text, err := r.Peek(5); string(text) != "hello" {
		t.Fatalf("%q %v", text, err)
	}
	if half, ok := conn.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
	<-over
	testwait.For(t, "the end of the request", func() bool { return l.PoolStates("")[0].Requests == 0 })
	if after := errorsOf(t); after != before {
		t.Errorf("%v failures were counted", after-before)
	}
}

// errorsOf is the number of failed inference requests.
func errorsOf(t *testing.T) (sum float64) {
	t.Helper()
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "inference_objective_request_error_total" {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
