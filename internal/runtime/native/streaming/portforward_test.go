package streaming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/moby/spdystream"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	criremote "k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"carob/internal/base/testwait"
)

// ports forwards: port 7 returns what it gets, port 9 reads nothing until its context ends, others fail. commands wait
// for their input's end.
type ports struct{ ended chan error }

func (p ports) PortForward(ctx context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	switch port {
	case 7:
		_, err := io.Copy(stream, stream)
		return err
	case 9:
		<-ctx.Done()
		p.ended <- ctx.Err()
		return ctx.Err()
	}
	return errors.New("connection refused")
}

func (ports) Exec(_ context.Context, _ string, _ []string, in io.Reader, _, _ io.WriteCloser, _ bool,
	_ <-chan criremote.TerminalSize) error {
	_, err := io.Copy(io.Discard, in)
	return err
}

func (ports) Attach(context.Context, string, io.Reader, io.WriteCloser, io.WriteCloser, bool,
	<-chan criremote.TerminalSize) error {
	return nil
}

// client upgrades a connection to SPDY.
func client(t *testing.T, address, protocol string) (*spdystream.Connection, net.Conn) {
	t.Helper()
	c := upgraded(t, address, "Upgrade: SPDY/3.1", "X-Stream-Protocol-Version: "+protocol)
	if err := c.SetDeadline(time.Time{}); err != nil { // a busy machine may take long
		t.Fatal(err)
	}
	s, err := spdystream.NewConnection(c, false)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(spdystream.NoOpStreamHandler)
	return s, c
}

func forwardURL(t *testing.T, s *Server) string {
	t.Helper()
	resp, err := s.GetPortForward(&cri.PortForwardRequest{PodSandboxId: "p"})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetUrl()
}

// open opens a stream, and waits for the reply.
func open(s *spdystream.Connection, kind, port, id string) (*spdystream.Stream, error) {
	h := http.Header{"Streamtype": {kind}, "Port": {port}}
	if id != "" {
		h.Set("Requestid", id)
	}
	stream, err := s.CreateStream(h, nil, false)
	if err != nil {
		return nil, err
	}
	return stream, stream.WaitTimeout(testwait.Limit)
}

// openPair opens the two streams of a forwarded connection.
func openPair(t *testing.T, s *spdystream.Connection, port, id string) (data, errs *spdystream.Stream) {
	t.Helper()
	errs, err := open(s, "error", port, id)
	if err != nil {
		t.Fatal(err)
	}
	if data, err = open(s, "data", port, id); err != nil {
		t.Fatal(err)
	}
	return data, errs
}

func TestPortForward(t *testing.T) {
	server := startWith(t, ports{})
	server.every = time.Millisecond // no look ends a connection whose client is there
	s, _ := client(t, forwardURL(t, server), "portforward.k8s.io")
	for _, id := range []string{"1", ""} { // old clients send no ID
		data, errs := openPair(t, s, "7", id)
		if _, err := data.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if err := data.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(data)
		if err != nil || string(got) != "hello" {
			t.Errorf("id %q: %q, %v", id, got, err)
		}
		if got, err := io.ReadAll(errs); err != nil || len(got) > 0 {
			t.Errorf("id %q: error %q, %v", id, got, err)
		}
	}
	_, errs := openPair(t, s, "8", "2")
	if got, _ := io.ReadAll(errs); string(got) != "error forwarding port 8 to pod p, uid : connection refused" {
		t.Errorf("a port that fails: %q", got)
	}
	for _, port := range []string{"", "0", "-1", "65536", "http"} {
		if _, err := open(s, "error", port, "3"); !errors.Is(err, spdystream.ErrReset) {
			t.Errorf("port %q: %v", port, err)
		}
	}
	if _, err := open(s, "stdin", "7", "4"); !errors.Is(err, spdystream.ErrReset) {
		t.Errorf("another type: %v", err)
	}
}

// A client that leaves ends its forwarded connections, whatever its streams wait for: a port that does not read, data
// on a stream that is not read, a second stream that never comes. Nothing of it stays.
func TestForwardEndsWithItsClient(t *testing.T) {
	p := ports{ended: make(chan error, 1)}
	server := startWith(t, p)
	before := runtime.NumGoroutine()
	for range 20 {
		s, c := client(t, forwardURL(t, server), "portforward.k8s.io")
		data, errs := openPair(t, s, "9", "1")
		if _, err := open(s, "error", "9", "2"); err != nil {
			t.Fatal(err)
		}
		for _, stream := range []*spdystream.Stream{data, errs} {
			if _, err := stream.Write([]byte("nobody reads it")); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-p.ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the forwarded connection ended with %v", err)
			}
		case <-time.After(testwait.Limit):
			t.Fatal("the forwarded connection goes on")
		}
	}
	// Those of the test's own 20 clients end, too, but for one that waits for its closed connection's timeout.
	testwait.For(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() < before+20 })
}

// A port that does not read holds up the frames that follow, also the end of the connection: it is noticed otherwise.
func TestForwardEndsBehindManyFrames(t *testing.T) {
	p := ports{ended: make(chan error, 1)}
	server := startWith(t, p)
	server.every = 10 * time.Millisecond
	s, c := client(t, forwardURL(t, server), "portforward.k8s.io")
	data, _ := openPair(t, s, "9", "1")
	for range 500 { // more than the library queues
		if _, err := data.Write([]byte("nobody reads it")); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(testwait.Limit):
		t.Fatal("the forwarded connection goes on")
	}
}

// A client that opens streams without end is disconnected, and the server takes the next one.
func TestForwardFlood(t *testing.T) {
	server := startWith(t, ports{})
	s, _ := client(t, forwardURL(t, server), "portforward.k8s.io")
	n := 0
	for ; n <= 2*mostStreams; n++ {
		if _, err := open(s, "error", "7", fmt.Sprint(n)); err != nil {
			break
		}
	}
	if n != mostStreams {
		t.Errorf("%d streams were open at once", n)
	}
	testwait.For(t, "the end of the connection", func() bool {
		select {
		case <-s.CloseChan():
			return true
		default:
			return false
		}
	})
	TestPortForward(t)
}

// A command gets the streams that were requested. A client that opens one more is disconnected: cri-streaming would
// keep its connection for ever.
func TestExecWithTooManyStreams(t *testing.T) {
	server := startWith(t, ports{})
	before := runtime.NumGoroutine()
	for range 20 {
		command := &cri.ExecRequest{ContainerId: "c", Cmd: []string{"cat"}, Stdin: true, Stdout: true}
		resp, err := server.GetExec(command)
		if err != nil {
			t.Fatal(err)
		}
		s, c := client(t, resp.GetUrl(), "v4.channel.k8s.io")
		for _, kind := range []string{"error", "stdin", "stdout"} {
			if _, err := open(s, kind, "", ""); err != nil {
				t.Fatal(err)
			}
		}
		// The server ends it within the frame.
		_, _ = s.CreateStream(http.Header{"Streamtype": {"stderr"}}, nil, false)
		testwait.For(t, "the end of the connection", func() bool {
			select {
			case <-s.CloseChan():
				return true
			default:
				return false
			}
		})
		_ = c.Close()
	}
	testwait.For(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() < before+20 })
}

// URLs are for one use, of their own kind, and limited in number.
func TestURLs(t *testing.T) {
	server := startWith(t, ports{})
	get := func(u string) int {
		res, err := http.Get(u) //nolint:noctx // loopback
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	u := forwardURL(t, server)
	if code := get(strings.Replace(u, "portforward", "exec", 1)); code != http.StatusNotFound {
		t.Errorf("a port-forward as exec: %d", code)
	}
	if code := get(u); code != http.StatusNotFound {
		t.Errorf("a URL that was used: %d", code)
	}
	for range mostWait {
		forwardURL(t, server)
	}
	if _, err := server.GetPortForward(&cri.PortForwardRequest{PodSandboxId: "p"}); err == nil {
		t.Error("more URLs than may wait")
	}
	if _, err := server.GetPortForward(&cri.PortForwardRequest{}); err == nil {
		t.Error("no pod")
	}
}
