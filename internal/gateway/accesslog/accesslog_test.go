package accesslog

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"

	"carob/internal/base/linefile"
	"carob/internal/base/testwait"
)

// A file that was renamed belongs to the program that renamed it.
func TestRotatedAccessLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	f := &logFile{path: path}
	defer f.close()
	write := func(text string) {
		t.Helper()
		f.checked = time.Time{}
		if err := f.write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := f.flush(); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write("two\n")
	for p, want := range map[string]string{path + ".1": "one\n", path: "two\n"} {
		if got, err := os.ReadFile(p); err != nil || string(got) != want {
			t.Errorf("%s has %q (%v), want %q", p, got, err, want)
		}
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	f.checked = time.Time{}
	if err := f.write([]byte("three\n")); err == nil {
		t.Error("no error although the directory has gone")
	}
}

// small is a file on a disk with room for a number of bytes.
type small struct {
	*os.File
	room int
}

func (d *small) Write(p []byte) (int, error) {
	n := min(len(p), d.room)
	d.room -= n
	if n, err := d.File.Write(p[:n]); err != nil {
		return n, err
	}
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// However much of some lines a full disk still takes, the lines that are not whole are counted, and the next one is not
// appended to a half of one.
func TestFullDisk(t *testing.T) {
	const lines = "one\ntwo\nthree\n"
	for room := range len(lines) {
		path := filepath.Join(t.TempDir(), "access.log")
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		f := &logFile{path: path, file: file, out: linefile.Writer{To: &small{file, room}}, stat: file.Stat,
			checked: time.Now().Add(time.Hour)}
		for line := range strings.Lines(lines) {
			if err := f.write([]byte(line)); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.flush(); err == nil {
			t.Fatal("no error")
		}
		whole := strings.Count(lines[:room], "\n")
		if f.lost != 3-whole {
			t.Errorf("room for %d bytes: %d lines are lost", room, f.lost)
		}
		if err := f.write([]byte("four\n")); err != nil {
			t.Fatal(err)
		}
		f.close()
		got, err := os.ReadFile(path)
		want := lines[:room]
		if want != "" && want[len(want)-1] != '\n' {
			want += "\n"
		}
		if want += "four\n"; err != nil || string(got) != want {
			t.Errorf("room for %d bytes: %q, want %q", room, got, want)
		}
	}
}

// While the file cannot be opened, each line counts as lost, and the log has one message. When it can be, the lines are
// written.
func TestLostLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "access.log")
	var reports atomic.Int64
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(),
		funcr.New(func(_, _ string) { reports.Add(1) }, funcr.Options{})))
	lost := make(chan struct{}, 100)
	l := New(path, 10, func() { lost <- struct{}{} })
	var run sync.WaitGroup
	run.Go(func() { l.Run(ctx) })
	defer run.Wait()
	defer cancel()
	for range 20 {
		l.Add([]byte("line\n"))
		<-lost // the report of the line before was made
	}
	if got := reports.Load(); got != 1 {
		t.Errorf("%d reports", got)
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	l.Add([]byte("first\n"))
	testwait.For(t, "a line is written", func() bool {
		text, err := os.ReadFile(path)
		return err == nil && string(text) == "first\n"
	})
	if got := reports.Load(); got != 1 || len(lost) > 0 {
		t.Errorf("%d reports, %d lines were lost", got, len(lost))
	}
}
