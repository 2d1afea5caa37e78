package monitor

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/base/openfile"
)

// TestMonitorDoesNotAnswer: a call about a shown log waits no longer than its caller wants.
func TestMonitorDoesNotAnswer(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	conn, err := openfile.UnixConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	m := newMonitor(conn)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := m.Shown(ctx, "id"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	theirs.Close()
	if err := m.Shown(context.Background(), "id"); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
}
