package logs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A log goes with what rotation moved away from it, and nothing else goes (L3.155, L3.156): nothing of another
// directory either to which a link was put among the logs.
func TestRemove(t *testing.T) {
	root := t.TempDir()
	pod := filepath.Join(root, "ns_pod_uid[1]*") // a path is never read as a pattern
	dir, other := filepath.Join(pod, "c"), filepath.Join(root, "ns_other_uid", "c")
	files := []string{"0.log", "1.log", "1.log.20261121-000000", "1.log.20261121-000000.gz", "11.log"}
	for _, d := range []string{dir, other} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if err := os.WriteFile(filepath.Join(d, name), nil, 0o640); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect := func(dir string, want ...string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if !slices.Equal(left, want) {
			t.Errorf("left in %s: %v, want %v", dir, left, want)
		}
	}
	for range 2 { // it may be repeated
		if err := Remove(filepath.Join(dir, "1.log")); err != nil {
			t.Fatal(err)
		}
	}
	expect(dir, "0.log", "11.log")

	for _, link := range []string{filepath.Join(pod, "linked"), filepath.Join(root, "ns_linked_uid")} {
		to := other
		if filepath.Dir(link) == root {
			to = filepath.Dir(other)
		}
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Join(pod, "linked", "1.log"),
		filepath.Join(root, "ns_linked_uid", "c", "1.log")} {
		if err := Remove(path); err != nil { // a pod whose log cannot be removed would never go
			t.Error(err)
		}
	}
	expect(other, files...)
	for _, gone := range []string{"ns_gone_uid/c/1.log", "ns_other_uid/c/0.log/1.log"} {
		if err := Remove(filepath.Join(root, gone)); err != nil {
			t.Errorf("%s: %v", gone, err)
		}
	}
}
