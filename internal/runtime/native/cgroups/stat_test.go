package cgroups

import (
	"path/filepath"
	"testing"
)

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
