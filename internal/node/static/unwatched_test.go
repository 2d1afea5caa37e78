package static

import (
	"context"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// The kernel gives all processes of a user together 128 instances of inotify, and a pod of root can take them all. Then
// the manifests are checked at each Wake, which the reporter of the node calls every ten seconds at least.
func TestWithoutInotify(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	calls := 0
	s := NewSource(SourceConfig{Path: filepath.Join(t.TempDir(), "none"), Node: "n", Complete: accept,
		Wanted: func([]*corev1.Pod) { calls++ }})
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Max: files.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	err := s.Run(ended)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if err != nil || calls != 1 {
		t.Errorf("%d sets of pods: %v", calls, err)
	}

	w := &watched{t: t, dir: t.TempDir(), pods: make(chan []*corev1.Pod, 10)}
	w.Source = NewSource(SourceConfig{Path: w.dir, Node: "n", Complete: accept,
		Wanted: func(p []*corev1.Pod) { w.pods <- p }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.follow(ctx, nil) }()
	w.next()
	w.write("web.yaml", manifest)
	w.Wake()
	w.next("web-n")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
