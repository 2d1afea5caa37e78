package extproc

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// remembering is a listener that says what it has accepted.
type remembering struct {
	net.Listener
	accepted chan *net.TCPConn
}

func (r remembering) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		r.accepted <- tcp
	}
	return c, err
}

// vanish has the kernel drop all that arrives at a connection, unanswered, as if its node had lost its power.
func vanish(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: 1, Filter: &drop})
	}); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}

// userTimeout is the TCP_USER_TIMEOUT of a connection in milliseconds.
func userTimeout(t *testing.T, c net.Conn) (out int) {
	t.Helper()
	tcp, _ := c.(*net.TCPConn)
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		out, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	}); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return out
}

// When the node of a picker vanishes without a reset, its connection ends soon, with an error after which another one
// is tried. The requests after that do not wait for it.
func TestPickerWhoseNodeVanishes(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan *net.TCPConn, 16)
	server, over := grpc.NewServer(), make(chan error, 1)
	extprocv3.RegisterExternalProcessorServer(server, &hostile{
		send: func(send func(*extprocv3.ProcessingResponse) error) error { return send(picked(&Choice{}, -1)) }})
	go func() { over <- server.Serve(remembering{ln, accepted}) }()
	defer func() { server.Stop(); <-over }()
	dialed := make(chan net.Conn, 16)
	client, err := New(func(ctx context.Context) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
		if err == nil {
			dialed <- c
		}
		return c, err
	}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	client.probes.quiet = time.Hour // the connection alone decides
	pick := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, _, err := client.Pick(ctx, httptest.NewRequest(http.MethodGet, "/", nil), nil, nil)
		if err == nil {
			stream.Close()
		}
		return err
	}
	if err := pick(); err != nil {
		t.Fatal(err)
	}
	if limit := userTimeout(t, <-dialed); limit != int(unacknowledgedTime.Milliseconds()) {
		t.Fatalf("a connection ends after %d ms without an acknowledgement", limit) // 0: some kernels take 15 minutes
	}
	vanish(t, <-accepted)
	if err := pick(); !Lost(err) {
		t.Errorf("at the connection that has vanished: %v", err)
	}
	if err := client.Connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := pick(); err != nil {
		t.Errorf("at the next connection: %v", err)
	}
}
