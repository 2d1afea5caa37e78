package logs

import (
	"os"
	"path/filepath"
	"testing"

	"carob/internal/base/testwait"
)

// inotifyInstances counts those of this process.
func inotifyInstances(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == "anon_inode:inotify" {
			n++
		}
	}
	return n
}

// All followers share an inotify instance, which ends with the last of them. Each is woken by what happens in its own
// directory, also if that was removed and made again, or is removed.
func TestFollowersShareAnInstance(t *testing.T) {
	before := inotifyInstances(t)
	top := t.TempDir()
	var wakes []<-chan struct{}
	var paths []string
	var stops []chan struct{}
	follow := func(path string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		wakes, paths, stops = append(wakes, watch(path, stop)), append(paths, path), append(stops, stop)
	}
	for range 2 {
		for _, dir := range []string{"a", "b"} {
			follow(filepath.Join(top, dir, "0.log"))
		}
	}
	if n := inotifyInstances(t); n != before+1 {
		t.Fatalf("%d instances, %d before", n, before)
	}
	woken := func(change func() error, want ...int) {
		t.Helper()
		for _, w := range wakes {
			select {
			case <-w:
			default:
			}
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		for _, i := range want {
			<-wakes[i]
		}
	}
	write := func(i int) func() error { return func() error { return os.WriteFile(paths[i], []byte("x"), 0o600) } }
	woken(write(0), 0, 2)
	if len(wakes[1])+len(wakes[3]) > 0 {
		t.Error("others are woken")
	}
	close(stops[0]) // one of two
	woken(write(2), 2)
	woken(func() error { return os.RemoveAll(filepath.Dir(paths[1])) }, 1, 3)
	follow(paths[1]) // the directory is made again
	woken(write(4), 4)
	for _, stop := range stops[1:] {
		close(stop)
	}
	testwait.For(t, "the instance ends", func() bool { return inotifyInstances(t) == before })
	followed.mu.Lock()
	defer followed.mu.Unlock()
	if followed.w != nil || len(followed.dirs) > 0 {
		t.Errorf("left: %v", followed.dirs)
	}
}
