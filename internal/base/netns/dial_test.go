package netns

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/testwait"
)

// pinned is a namespace with loopback addresses.
func pinned(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	path := filepath.Join(t.TempDir(), "ns")
	t.Cleanup(func() { _ = Unpin(path) })
	if err := DoNew(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(lo), Pin(Current, path))
	}); err != nil {
		t.Fatal(err)
	}
	return path
}

// inside is an address of the namespace at which a program listens and accepts nothing.
func inside(t *testing.T, path, address string, backlog int) netip.AddrPort {
	t.Helper()
	var f *os.File
	var port int
	if err := Do(path, func() error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		defer func() { _ = l.Close() }()
		port = l.Addr().(*net.TCPAddr).Port
		f, err = l.(*net.TCPListener).File()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.Listen(int(f.Fd()), backlog); err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(netip.MustParseAddrPort(address).Addr(), uint16(port))
}

func TestDialTCP(t *testing.T) {
	path := pinned(t)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		to := inside(t, path, address, 5)
		c, err := DialTCP(t.Context(), path, to)
		if err != nil {
			t.Fatal(err)
		}
		if c.RemoteAddr().String() != to.String() {
			t.Errorf("connected to %s instead of %s", c.RemoteAddr(), to)
		}
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Error(err)
		}
		_ = c.Close()
		if _, err := DialTCP(t.Context(), "", to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("the own namespace has no such server: %v", err)
		}
	}
	_, err := DialTCP(t.Context(), path, netip.MustParseAddrPort("127.0.0.1:9"))
	if err == nil || err.Error() != "dial tcp 127.0.0.1:9: connect: connection refused" {
		t.Errorf("a closed port: %v", err)
	}
	if _, err := DialTCP(t.Context(), path+"-none", netip.MustParseAddrPort("127.0.0.1:9")); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("no namespace: %v", err)
	}
}

// A server whose queue is full makes connections wait: they take no threads, which end the process when there are
// 10,000, and they end with their context.
func TestDialTCPTakesNoThread(t *testing.T) {
	const dials = 64
	path := pinned(t)
	to := inside(t, path, "127.0.0.1:0", 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := threads(t)
	ended := make(chan error, dials)
	for range dials {
		go func() {
			c, err := DialTCP(ctx, path, to)
			if err == nil { // the queue is that long
				<-ctx.Done()
				err = errors.Join(ctx.Err(), c.Close())
			}
			ended <- err
		}()
	}
	testwait.For(t, "all connections wait", func() bool { return waiting(t, path) >= dials-4 })
	if after := threads(t); after-before > dials/2 {
		t.Errorf("%d connections that wait need %d threads", dials, after-before)
	}
	cancel()
	for range dials {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled connection: %v", err)
		}
	}
}

func threads(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// waiting counts the connections of the namespace that are not answered.
func waiting(t *testing.T, path string) (n int) {
	t.Helper()
	if err := Do(path, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/tcp")
		n = strings.Count(string(text), " 02 ") // SYN_SENT
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
