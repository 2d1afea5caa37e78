package openfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// world is a directory with files, and a count of how often one was opened.
type world struct {
	t     *testing.T
	f     Files
	dir   string
	opens int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	t.Cleanup(w.f.Close)
	return w
}

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) open(path string) (int, error) {
	w.opens++
	return Open(path)
}

// reads expects the text of a file, how often any was opened so far, and how many are open.
func (w *world) reads(owner, name, want string, opens, kept int) {
	w.t.Helper()
	got, err := w.f.Read(owner, filepath.Join(w.dir, name), w.open)
	if got != want || err != nil {
		w.t.Errorf("%s: read %d bytes, %v, want %d", name, len(got), err, len(want))
	}
	w.has(opens, kept)
}

func (w *world) has(opens, kept int) {
	w.t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		w.t.Fatal(err)
	}
	real := 0
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, w.dir+"/") {
			real++
		}
	}
	if w.opens != opens || real != kept || w.f.count.Load() != int64(kept) {
		w.t.Errorf("opened %d times, %d are open, %d are counted; want %d and %d", w.opens, real, w.f.count.Load(), opens,
			kept)
	}
}

// A file of any length is read to its end, as os.ReadFile does, without what that adds for each file.
func TestReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory.stat")
	for _, n := range []int{0, 1, 8191, 8192, 8193, 30000} {
		want := strings.Repeat("x", n)
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadOnce(path); got != want || err != nil {
			t.Errorf("%d bytes: got %d, %v", n, len(got), err)
		}
	}
	for _, missing := range []string{path + "x", filepath.Join(path, "x"), "\x00"} {
		if _, err := ReadOnce(missing); err == nil {
			t.Errorf("%q was read", missing)
		}
	}
	if _, err := ReadOnce(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := ReadOnce(t.TempDir()); err == nil {
		t.Error("a directory was read")
	}
	ours := testing.AllocsPerRun(100, func() { _, _ = ReadOnce("/proc/self/cgroup") })
	theirs := testing.AllocsPerRun(100, func() { _, _ = os.ReadFile("/proc/self/cgroup") })
	if ours >= theirs {
		t.Errorf("%g allocations, os.ReadFile has %g", ours, theirs)
	}
}

// A file is opened once, and read as it is at each read, whatever its length.
func TestRead(t *testing.T) {
	w := newWorld(t)
	for _, n := range []int{0, 1, 8191, 8192, 8193, 30000, 3} {
		text := strings.Repeat("x", n)
		w.write("a", text)
		w.reads("c1", "a", text, 1, 1)
	}
	w.write("b", "2")
	w.reads("c1", "b", "2", 2, 2)
	w.reads("c2", "b", "2", 3, 3)
}

// What cannot be opened or read is an error, and stays open nowhere.
func TestErrors(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{filepath.Join(w.dir, "none"), w.dir, "\x00"} {
		if _, err := w.f.Read("c1", path, Open); err == nil {
			t.Errorf("%q was read", path)
		}
	}
	w.has(0, 0)
}

// The end of an owner closes its files, also if it comes twice, before the first read, or during one.
func TestForget(t *testing.T) {
	w := newWorld(t)
	w.write("a", "1")
	w.f.Forget("c1")
	w.reads("c1", "a", "1", 1, 1)
	w.reads("c2", "a", "1", 2, 2)
	w.f.Forget("c1")
	w.f.Forget("c1")
	w.has(2, 1)
	w.reads("c2", "a", "1", 2, 1)

	o := w.f.of("c2") // a read that has begun
	w.f.Forget("c2")
	if !o.gone {
		t.Error("the read would keep its file open")
	}
	w.has(2, 0)
	// The owner was found to have ended after the read.
	w.reads("c3", "a", "1", 3, 1)
	w.f.Forget("c3")
	w.has(3, 0)
}

// After Close, files are opened and closed for each read.
func TestClose(t *testing.T) {
	w := newWorld(t)
	w.write("a", "1")
	w.reads("c1", "a", "1", 1, 1)
	w.f.Close()
	w.f.Close()
	w.has(1, 0)
	w.reads("c1", "a", "1", 2, 0)
	w.f.Forget("c1")
}

// Files above the limit are opened and closed for each read; the others stay open.
func TestLimit(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.write("a", "1")
	w.write("b", "2")
	w.f.count.Store(int64(min(most, was.Cur/share)) - 1)
	read := func(name, want string, opens int) {
		t.Helper()
		got, err := w.f.Read("c1", filepath.Join(w.dir, name), w.open)
		if got != want || err != nil || w.opens != opens {
			t.Errorf("%q, %v, opened %d times, want %d", got, err, w.opens, opens)
		}
	}
	read("a", "1", 1)
	read("b", "2", 2)
	read("a", "1", 2)
	read("b", "2", 3)
	w.f.Forget("c1")
	read("b", "2", 4)
	read("b", "2", 4)
	w.f.Forget("c1")
	w.f.count.Store(0)
	w.has(4, 0)
}

// Five minutes after the last read all files are closed; the next read opens them again.
func TestIdle(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, dir: dir}
		defer w.f.Close()
		w.write("a", "1")
		w.reads("c1", "a", "1", 1, 1)
		time.Sleep(idle - time.Nanosecond)
		w.reads("c1", "a", "1", 1, 1)
		time.Sleep(idle - time.Nanosecond)
		synctest.Wait()
		w.has(1, 1)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		w.has(1, 0)
		w.reads("c1", "a", "1", 2, 1)
		time.Sleep(idle)
		synctest.Wait()
		w.has(2, 0)
	})
}
