package execute

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A log goes with what rotation moved away from it, and nothing else goes (L3.155, L3.156).
func TestRemoveLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod[1]*") // a path is never read as a pattern
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"1.log", "1.log.20261121-000000", "1.log.20261121-000000.gz", "11.log", "0.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // it may be repeated
		if err := removeLog(filepath.Join(dir, "1.log")); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if !slices.Equal(left, []string{"0.log", "11.log"}) {
		t.Errorf("left: %v", left)
	}
}

// CRI counts whole seconds; a grace is never cut.
func TestWholeSeconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, time.Nanosecond: 1, 1500 * time.Millisecond: 2,
		2 * time.Second: 2} {
		if got := wholeSeconds(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
}
