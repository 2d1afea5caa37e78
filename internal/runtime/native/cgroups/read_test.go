package cgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file of any length is read to its end, as os.ReadFile does, without what that adds for each file.
func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory.stat")
	for _, n := range []int{0, 1, 8191, 8192, 8193, 30000} {
		want := strings.Repeat("x", n)
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readFile(path); got != want || err != nil {
			t.Errorf("%d bytes: got %d, %v", n, len(got), err)
		}
	}
	for _, missing := range []string{path + "x", filepath.Join(path, "x"), "\x00"} {
		if _, err := readFile(missing); err == nil {
			t.Errorf("%q was read", missing)
		}
	}
	if _, err := readFile(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := readFile(t.TempDir()); err == nil {
		t.Error("a directory was read")
	}
	ours := testing.AllocsPerRun(100, func() { _, _ = readFile("/proc/self/cgroup") })
	theirs := testing.AllocsPerRun(100, func() { _, _ = os.ReadFile("/proc/self/cgroup") })
	if ours >= theirs {
		t.Errorf("%g allocations, os.ReadFile has %g", ours, theirs)
	}
}
