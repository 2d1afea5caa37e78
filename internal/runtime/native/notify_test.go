package native

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"carob/internal/runtime/native/plan"
)

// A seccomp agent that accepts no connections holds up a start for a limited time only.
func TestAgentThatAcceptsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	first, err := net.Dial("unix", path) // the one that may wait
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	listener, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	err = handOver(&plan.SeccompAgent{Path: path}, listener, &specs.State{}, time.Millisecond)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	if err := listener.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the listener is open: %v", err)
	}
}
