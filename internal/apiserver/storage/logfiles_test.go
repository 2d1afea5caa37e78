package storage

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// holedFile makes a file like etcd's: reserved, not written.
func holedFile(t *testing.T, name string, size int64) *os.File {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Fatal(err)
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// The newest file of the log and the next are written ahead, and the log is as before.
func TestLogIsWrittenAhead(t *testing.T) {
	dir := t.TempDir()
	e, err := Open(t.Context(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if on := overwrites(dir); on == e.logFiles.closed {
		t.Fatalf("the file system overwrites blocks: %t; off: %t", on, e.logFiles.closed)
	} else if !on {
		t.Skip("this file system takes a new block for each write")
	}
	big := strings.Repeat("v", 1<<20)
	for i := range 12 { // more than a file
		if _, err := e.Client.Put(t.Context(), fmt.Sprint("/k", i), big); err != nil {
			t.Fatal(err)
		}
		e.logFiles.look()
	}
	// etcd prepares the next file a moment after it took one.
	for deadline := time.Now().Add(time.Minute); len(e.logFiles.filled) != 2 && time.Now().Before(deadline); {
		e.logFiles.look()
		e.logFiles.done.Wait()
	}
	if e.logFiles.closed || len(e.logFiles.filled) != 2 {
		t.Errorf("closed %t, files %v were written ahead, not two", e.logFiles.closed, e.logFiles.filled)
	}
	files, err := filepath.Glob(filepath.Join(dir, "member/wal/*"))
	if err != nil || len(files) < 3 {
		t.Fatalf("files %v, %v", files, err)
	}
	e.Close()
	if err := whole(t, dir, 12); err != nil {
		t.Fatal(err)
	}
}

// Nothing that the log writes at the same moment is lost, in any page.
func TestWritingAheadChangesNothing(t *testing.T) {
	const size = 2 << 20
	f := holedFile(t, filepath.Join(t.TempDir(), "log"), size)
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(rand.IntN(255) + 1)
	}
	var writer sync.WaitGroup
	end := make(chan struct{})
	writer.Go(func() {
		defer close(end)
		for at := 0; at < size; {
			n := min(1+rand.IntN(3000), size-at)
			if _, err := f.WriteAt(want[at:at+n], int64(at)); err != nil {
				t.Error(err)
				return
			}
			at += n
		}
	})
	for more := true; more; {
		select {
		case <-end:
			more = false
		default:
		}
		for at := int64(0); at < size; at += logStep {
			if err := touch(f, at, logStep); err != nil {
				t.Fatal(err)
			}
		}
	}
	writer.Wait()
	got, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, %v: the file is not what was written", len(got), err)
	}
}

// Each file is filled once, whatever its name; older files are not.
func TestLogFiles(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"1.wal", "2.wal", "0.tmp"} {
		holedFile(t, path(name), logSegment)
	}
	steps := map[string]int{}
	l := newLogFiles(dir, false)
	var fail error
	l.touch = func(f *os.File, at, size int64) error {
		if at != int64(steps[filepath.Base(f.Name())])*logStep || size != logStep {
			t.Errorf("%d bytes at %d", size, at)
		}
		steps[filepath.Base(f.Name())]++
		return fail
	}
	look := func(want map[string]int) {
		t.Helper()
		l.look()
		l.done.Wait()
		if !maps.Equal(steps, want) {
			t.Errorf("steps %v, not %v", steps, want)
		}
		clear(steps)
	}
	all := logSegment / logStep
	look(map[string]int{"2.wal": all, "0.tmp": all})
	look(map[string]int{})

	// The log takes the next file, and etcd makes another, which has no size yet.
	if err := os.Rename(path("0.tmp"), path("3.wal")); err != nil {
		t.Fatal(err)
	}
	next, err := os.Create(path("1.tmp"))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	look(map[string]int{})
	if err := next.Truncate(logSegment); err != nil {
		t.Fatal(err)
	}
	look(map[string]int{"1.tmp": all})
	look(map[string]int{})
	if err := l.fill(path("4.wal")); err != nil {
		t.Errorf("a file that got another name: %v", err)
	}

	// An error ends it, and so does close.
	holedFile(t, path("0.tmp"), logSegment)
	fail = errors.New("no")
	look(map[string]int{"0.tmp": 1})
	look(map[string]int{})
	closed := newLogFiles(dir, false)
	closed.touch = func(*os.File, int64, int64) error { t.Error("works after its end"); return nil }
	closed.close()
	closed.look()
	closed.done.Wait()
	if err := closed.fill(path("3.wal")); err != nil || len(closed.filled) > 0 {
		t.Errorf("%v: a file that was not filled counts as filled", err)
	}
}

// A file system that is not known to gain by it is left alone.
func TestWritingAheadOnOtherFileSystems(t *testing.T) {
	for _, dir := range []string{"/proc", filepath.Join(t.TempDir(), "none")} {
		if overwrites(dir) {
			t.Errorf("files in %s would be written ahead", dir)
		}
	}
}

// A file that cannot be read or written there is an error, not the end of the process.
func TestWritingAheadWithoutDisk(t *testing.T) {
	f := holedFile(t, filepath.Join(t.TempDir(), "log"), pageSize)
	if err := touch(f, 0, logStep); err == nil {
		t.Error("pages after the end of a file could be written")
	}
}

// BenchmarkLogSync is the sync of a record of the log while others make and remove files on the same disk. It takes
// turns with a file that was only reserved and one that was written ahead.
func BenchmarkLogSync(b *testing.B) {
	dir := b.TempDir()
	var files [2]*os.File
	for i := range files {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint("log", i)))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		if err := unix.Fallocate(int(f.Fd()), 0, 0, 8*logSegment); err != nil {
			b.Fatal(err)
		}
		for at := int64(0); i == 1 && at < 8*logSegment; at += logStep {
			if err := touch(f, at, logStep); err != nil {
				b.Fatal(err)
			}
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		files[i] = f
	}
	record := bytes.Repeat([]byte("r"), 3000)
	var took [2]time.Duration
	for n := 0; b.Loop(); n++ {
		for i := range 20 {
			name := filepath.Join(dir, fmt.Sprint(i))
			if err := errors.Join(os.WriteFile(name, record[:500], 0o600), os.Remove(name)); err != nil {
				b.Fatal(err)
			}
		}
		f := files[n%2]
		if _, err := f.Write(record); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
		took[n%2] += time.Since(began)
	}
	b.ReportMetric(took[0].Seconds()*2e3/float64(b.N), "ms/reserved")
	b.ReportMetric(took[1].Seconds()*2e3/float64(b.N), "ms/ahead")
}
