package plugins

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// The kernel gives all processes of a user together 128 instances of inotify, and a pod of root can take them all. Then
// the directory is examined from time to time: plugins register, keep their registration, and leave.
func TestWithoutInotify(t *testing.T) {
	dir, err := os.MkdirTemp("", "plugins")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := &handler{calls: make(chan string, 20)}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Max: files.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	w, err := New(Config{Dir: dir, Handlers: map[string]Handler{"CSIPlugin": h}, Logger: klog.Background()})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if w.notify != nil {
		t.Skip("the kernel had an instance")
	}
	w.tick = time.Tick(time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	first, second := filepath.Join(dir, "sub", "p"), filepath.Join(dir, "q")
	stop := newPlugin("CSIPlugin", "p").serve(t, first)
	if got := next(t, "the first plugin", h.calls); got != "+p "+first+" " {
		t.Error(got)
	}
	newPlugin("CSIPlugin", "q").serve(t, second)
	if got := next(t, "the second plugin", h.calls); got != "+q "+second+" " { // and nothing about the first one
		t.Error(got)
	}
	stop()
	if got := next(t, "the end of the first plugin", h.calls); got != "-p gone" {
		t.Error(got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
