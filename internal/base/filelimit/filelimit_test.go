package filelimit

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A share follows the limit as it is now, and no limit is a large one.
func TestShare(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		limit, parts uint64
		want         int64
	}{{100, 4, 25}, {103, 4, 25}, {3, 4, 0}, {64, 1, 64}} {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: c.limit, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		if got := Share(c.parts); got != c.want {
			t.Errorf("one of %d parts of %d files: %d, want %d", c.parts, c.limit, got, c.want)
		}
	}
}
