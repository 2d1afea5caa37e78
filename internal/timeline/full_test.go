package timeline

import (
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// On a full disk, what was written before can be read; and what is written later is whole, although a part of a line
// was written last.
func TestFullDisk(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "timeline"), Defaults())
	s.Record(entry("a", 1))
	if n := len(read(t, s, "a")); n != 1 {
		t.Fatalf("%d entries", n)
	}
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	full := unix.Rlimit{Cur: uint64(s.size) + 10, Max: old.Max} // as a full disk: the next write ends after 10 bytes
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &full); err != nil {
		t.Fatal(err)
	}
	s.Record(entry("a", 2))
	entries, err := s.Pod(t.Context(), "default", "a")
	follower, _, followErr := s.follow()
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err != nil || len(entries) != 1 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	if followErr != nil {
		t.Error(followErr)
	} else {
		s.unfollow(follower)
	}
	s.Record(entry("a", 3))
	if got := read(t, s, "a"); len(got) != 2 || !got[1].Time.Equal(time.Unix(3, 0)) {
		t.Errorf("after the disk has space again: %+v", got)
	}
}
