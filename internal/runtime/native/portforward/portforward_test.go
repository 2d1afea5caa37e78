package portforward

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// limitDescriptors sets the limit of descriptors of this process for the test.
func limitDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
}

// server accepts connections on the loopback address and sends each to the channel.
func server(t *testing.T) (int32, <-chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	return int32(l.Addr().(*net.TCPAddr).Port), accepted //nolint:gosec // a port
}

// A pod's connections take a sixteenth of the descriptors at most, those of all pods a quarter; each that ends makes
// room for another.
func TestLimits(t *testing.T) {
	limitDescriptors(t, 256) // 64 connections, 16 of a pod
	port, accepted := server(t)
	var f Forwards
	ended := make(chan error)
	begin := func(pod string) (near net.Conn) {
		near, far := net.Pipe()
		go func() { ended <- f.Serve(t.Context(), pod, "", port, far) }()
		return near
	}
	open := map[string][]net.Conn{}
	for _, pod := range []string{"a", "b", "c", "d"} {
		for range 16 {
			begin(pod)
			open[pod] = append(open[pod], <-accepted)
		}
	}
	for pod, reason := range map[string]string{"a": "to this pod: 16", "e": "on this node: 64"} {
		begin(pod)
		if err := <-ended; !errors.Is(err, ErrTooMany) || !strings.Contains(err.Error(), reason) {
			t.Errorf("one more of pod %s: %v, want %q", pod, err, reason)
		}
	}
	_ = open["b"][0].Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	begin("e")
	open["e"] = append(open["e"], <-accepted)
	for _, conns := range open {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	for range 64 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if f.all != 0 || len(f.count) != 0 {
		t.Errorf("after the end of all, %d connections are counted: %v", f.all, f.count)
	}
}

// A connection that fails is not counted, and one whose context ends is closed.
func TestEnds(t *testing.T) {
	port, accepted := server(t)
	var f Forwards
	near, far := net.Pipe()
	defer near.Close()
	if err := f.Serve(t.Context(), "a", "", 1, far); err == nil ||
		!strings.Contains(err.Error(), `failed to connect to localhost:1 inside namespace "a"`) {
		t.Errorf("a port where nothing listens: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		c := <-accepted
		defer c.Close()
		cancel()
		_, _ = io.Copy(io.Discard, c)
	}()
	near2, far2 := net.Pipe()
	defer near2.Close()
	if err := f.Serve(ctx, "a", "", port, far2); !errors.Is(err, context.Canceled) {
		t.Errorf("the context has ended: %v", err)
	}
	if f.all != 0 || len(f.count) != 0 {
		t.Errorf("%d connections are counted: %v", f.all, f.count)
	}
}
