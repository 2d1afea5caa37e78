package diskusage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, bytes int) {
	t.Helper()
	must(t, os.WriteFile(path, make([]byte, bytes), 0o600))
}

// Links lead nowhere, a file with two names counts once, directories count.
func TestOf(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "big"), 1<<20)
	must(t, os.Symlink(filepath.Join(outside, "big"), filepath.Join(dir, "file")))
	must(t, os.Symlink(outside, filepath.Join(dir, "dir")))
	write(t, filepath.Join(dir, "one"), 256<<10)
	must(t, os.Link(filepath.Join(dir, "one"), filepath.Join(dir, "two")))
	must(t, os.MkdirAll(filepath.Join(dir, "x", "y"), 0o700))
	must(t, unix.Mkfifo(filepath.Join(dir, "x", "pipe"), 0o600))
	u, err := Of(t.Context(), dir)
	if err != nil || u.Bytes < 256<<10 || u.Bytes > 320<<10 || u.Inodes != 7 {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := Of(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
	if _, err := Of(t.Context(), filepath.Join(dir, "dir")); err == nil {
		t.Error("a link was followed")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Of(ended, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("without time: %v", err)
	}
}

func TestMountsAreNotEntered(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	inner := filepath.Join(dir, "mount")
	must(t, os.Mkdir(inner, 0o700))
	must(t, unix.Mount("tmpfs", inner, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { _ = unix.Unmount(inner, unix.MNT_DETACH) })
	write(t, filepath.Join(inner, "f"), 1<<20)
	if u, err := Of(t.Context(), dir); err != nil || u.Bytes > 64<<10 || u.Inodes != 1 {
		t.Errorf("%+v, %v", u, err)
	}
}

// deep makes directories in each other, with a directory and a file beside each.
func deep(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|flags, 0)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(at, "a", 0o700))
		must(t, unix.Mkdirat(at, "b", 0o700))
		f, err := unix.Openat(at, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		must(t, err)
		must(t, unix.Close(f))
		next, err := unix.Openat(at, "a", unix.O_RDONLY|flags, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
}

// A path may be longer than any system call takes, and the directories more than descriptors: all of it counts.
func TestDeepDirectoriesCount(t *testing.T) {
	const depth = 3000
	dir := t.TempDir()
	deep(t, dir, depth)
	write(t, filepath.Join(dir, "last"), 1<<20)
	var before, during unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	during = before
	during.Cur = 256
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &during))
	u, err := Of(t.Context(), dir)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	if err != nil || u.Inodes != 3*depth+2 || u.Bytes < 1<<20 {
		t.Errorf("%+v, %v; want %d inodes", u, err, 3*depth+2)
	}
}

// A container moves directories while they are measured: nothing outside of the directory counts, and the walk ends.
func TestMovedDirectories(t *testing.T) {
	top := t.TempDir()
	dir, outside := filepath.Join(top, "volume"), filepath.Join(top, "outside")
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.MkdirAll(outside, 0o700))
	write(t, filepath.Join(outside, "big"), 8<<20)
	deep(t, dir, 300)
	below := filepath.Join(dir, strings.Repeat("a/", 200))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default: // either may fail: only this goroutine does it
				_ = os.Rename(filepath.Join(below, "a"), filepath.Join(outside, "moved"))
				_ = os.Rename(filepath.Join(outside, "moved"), filepath.Join(below, "a"))
			}
		}
	}()
	for range 50 {
		if u, err := Of(t.Context(), dir); err != nil || u.Bytes > 8<<20 || u.Inodes > 901 || u.Inodes < 600 {
			t.Errorf("%+v, %v", u, err)
		}
	}
	close(stop)
	<-stopped
}
