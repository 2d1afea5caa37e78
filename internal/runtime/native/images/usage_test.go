package images

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A container cannot hide what it writes: its layer is measured although a path in it is longer than any system call
// takes, which made the measurement fail, so that no limit was enforced (L7.152). Nor can it keep its layer from being
// removed by directories deeper than the process may have descriptors, nor use these up.
func TestLayerWithLongPathsIsMeasured(t *testing.T) {
	s := openStore(t, Config{})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"etc/one": "1"}), "app"))
	root := mounted(t, s, "c1", imageStatus(t, s, "app").Id, false)
	if err := os.WriteFile(filepath.Join(root, "big"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	const depth = 2200
	for range depth {
		if err := unix.Mkdirat(at, "aa", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, "aa", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(at)
		at = next
	}
	_ = unix.Close(at)
	if u, err := s.Usage(t.Context(), "c1"); err != nil || u.Bytes < 1<<20 || u.Inodes < depth {
		t.Errorf("%+v, %v", u, err)
	}
	if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = 512 // less than one for each directory
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err = s.Release(t.Context(), "c1")
	if err := errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)); err != nil {
		t.Errorf("the layer can't be removed: %v", err)
	}
}
