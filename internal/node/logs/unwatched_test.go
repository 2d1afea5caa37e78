package logs

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
// all logs are checked from time to time.
func TestRotationWithoutInotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, lines(0, 3))
	r := &Rotator{Runtime: &fakeRuntime{path: path}, MaxSize: 200, Logger: klog.Background()}
	r.Add("c", path)
	ended, end := context.WithCancel(t.Context())
	end()
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Max: files.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	err := r.Run(ended)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Error(err)
	}
	for range 3 {
		if !r.look(t.Context(), nil) {
			t.Fatal("nothing would report that the log grows")
		}
	}
	appendTo(t, path, lines(3, 9))
	r.look(t.Context(), nil)
	if old, err := rotated(path); err != nil || len(old) != 1 {
		t.Errorf("rotated: %q %v", old, err)
	}
}

// A directory with the name of a rotated log, or a disk without space for a compressed one, does not end the rotation:
// the log would grow without a limit.
func TestRotationBesideAFileThatCannotBeChanged(t *testing.T) {
	for _, planted := range []string{"20200101-000000", "20990101-000000", "20261121-085959", "20261121-085959.gz"} {
		t.Run(planted, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			if err := os.MkdirAll(filepath.Join(path+"."+planted, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
			r := &Rotator{Runtime: &fakeRuntime{path: path}, MaxFiles: 3, Logger: klog.Background()}
			at := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
			for i := range 6 {
				write(t, path, lines(0, 10))
				_ = r.rotate(t.Context(), "c", path, at.Add(time.Duration(i)*time.Second)) // what stays is reported
				if info, err := os.Stat(path); err != nil || info.Size() != 0 {
					t.Fatalf("rotation %d: the log was not rotated: %v %v", i, info, err)
				}
			}
			if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 4 {
				t.Errorf("%d files, %v", len(entries), err)
			}
		})
	}
}
