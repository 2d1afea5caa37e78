// Package portforward connects streams of clients with ports of pods, a limited number at once: a client can open
// thousands of streams in one connection, and each takes a descriptor of this process, which everything else here
// needs, too. The native runtime drives it. It handles network namespaces, not sandboxes.
package portforward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"carob/internal/base/filelimit"
	"carob/internal/base/netns"
)

// share is the part of the descriptors that all connections may take together, and the part of these for one pod.
const share = 4

// ErrTooMany is returned for a connection above the limit.
var ErrTooMany = errors.New("too many connections are being forwarded")

// Forwards are the connections of all pods. The zero value is ready for use, and safe for concurrent use.
type Forwards struct {
	mu    sync.Mutex
	count map[string]int // by pod
	all   int
}

// Serve connects to a port on the loopback address of the network namespace at path, IPv4 first, and copies between it
// and stream until the port's side ends, or ctx. It closes stream's side for writing. pod is whose limit counts.
func (f *Forwards) Serve(ctx context.Context, pod, path string, port int32, stream io.ReadWriteCloser) error {
	if err := f.add(pod); err != nil {
		return err
	}
	defer f.remove(pod)
	conn, err := dial(ctx, path, port)
	if err != nil {
		return fmt.Errorf("failed to connect to localhost:%d inside namespace %q: %w", port, pod, err)
	}
	defer func() { _ = conn.Close() }()
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, stream)
		if t, ok := conn.(*net.TCPConn); ok {
			_ = t.CloseWrite() // the other direction continues
		}
		if err != nil {
			_ = conn.Close()
		}
	}()
	go func() {
		_, err := io.Copy(stream, conn)
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = stream.Close()
	return err
}

// add counts a connection of a pod.
func (f *Forwards) add(pod string) error {
	limit := int(filelimit.Share(share))
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.count[pod] >= max(1, limit/share):
		return fmt.Errorf("%w to this pod: %d", ErrTooMany, f.count[pod])
	case f.all >= limit:
		return fmt.Errorf("%w on this node: %d", ErrTooMany, f.all)
	}
	if f.count == nil {
		f.count = map[string]int{}
	}
	f.count[pod]++
	f.all++
	return nil
}

func (f *Forwards) remove(pod string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all--
	if f.count[pod]--; f.count[pod] == 0 {
		delete(f.count, pod)
	}
}

// dial connects to a port on the loopback address of a network namespace, IPv4 first.
func dial(ctx context.Context, path string, port int32) (net.Conn, error) {
	at := func(a netip.Addr) netip.AddrPort {
		return netip.AddrPortFrom(a, uint16(port)) //nolint:gosec // streaming servers check it
	}
	conn, err := netns.DialTCP(ctx, path, at(netip.AddrFrom4([4]byte{127, 0, 0, 1})))
	if err != nil && ctx.Err() == nil {
		if c6, err6 := netns.DialTCP(ctx, path, at(netip.IPv6Loopback())); err6 == nil {
			return c6, nil
		}
	}
	return conn, err
}
