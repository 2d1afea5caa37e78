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

// A name is found as a whole, wherever its line is; what is no number is 0.
func TestStat(t *testing.T) {
	const text stat = "cache 1\ntotal_cache 2\nrss_huge 3\nrss 4\nbad x\nempty\nswap 18446744073709551615\nlast 5"
	for name, want := range map[string]uint64{"cache": 1, "total_cache": 2, "rss": 4, "rss_huge": 3, "bad": 0, "empty": 0,
		"swap": 1<<64 - 1, "last": 5, "ast": 0, "none": 0} {
		if got := text.of(name); got != want {
			t.Errorf("%s is %d, not %d", name, got, want)
		}
	}
	if got := readStat(filepath.Join(t.TempDir(), "none")).of("x"); got != 0 {
		t.Errorf("a missing file has %d", got)
	}
}
