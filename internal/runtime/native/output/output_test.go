package output

import (
	"bytes"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"carob/internal/base/testwait"
)

// A command's output is kept up to the limit, and one that prints nothing costs no buffer (L5.20).
func TestLimitedOutput(t *testing.T) {
	var l limited
	in := strings.Repeat("x", Most) + "the rest"
	if n, err := l.ReadFrom(strings.NewReader(in)); n != int64(len(in)) || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if got := l.b.Len(); got != Most {
		t.Errorf("kept %d bytes", got)
	}
	var l2 limited
	written, err := l2.ReadFrom(io.MultiReader(strings.NewReader("said"), brokenReader{}))
	if written != 4 || !errors.Is(err, io.ErrClosedPipe) || l2.b.String() != "said" {
		t.Errorf("read %d bytes %q, %v", written, l2.b.String(), err)
	}
	const n = 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		if _, err := (&limited{}).ReadFrom(bytes.NewReader(nil)); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / n; each > 4096 {
		t.Errorf("%d bytes for a command without output", each)
	}
}

// A process that the command left behind writes on: the output that was returned stays as it was (L5.20).
func TestOutputAfterTheEnd(t *testing.T) {
	var l limited
	stop, stopped := make(chan struct{}), make(chan struct{})
	l.write([]byte("said"))
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				l.write([]byte("more"))
			}
		}
	}()
	got := l.take()
	before := string(got)
	for range 100 {
		l.write([]byte("later"))
	}
	close(stop)
	<-stopped
	if string(got) != before || !strings.HasPrefix(before, "said") || len(l.take()) != len(got) {
		t.Errorf("%d bytes became %d", len(before), len(l.take()))
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

func newCollector(t *testing.T) *Collector {
	t.Helper()
	before := pipes(t)
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		c.Close()
		testwait.For(t, "all ends are closed", func() bool { return pipes(t) == before })
	})
	return c
}

// pipes counts the descriptors of pipes.
func pipes(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "pipe:") {
			n++
		}
	}
	return n
}

func ended(c *Collector) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// The output of a command that has ended is read at once, without a goroutine (L5.20).
func TestFinish(t *testing.T) {
	for _, written := range [][2]string{{"", ""}, {"out", ""}, {"", "err"}, {"out", "err"},
		{strings.Repeat("x", 60000), "e"}} {
		c := newCollector(t)
		for i, text := range written {
			if _, err := c.Theirs[i].WriteString(text); err != nil {
				t.Fatal(err)
			}
			c.Theirs[i].Close()
		}
		if ended(c) {
			t.Error("ended before it was read")
		}
		before := runtime.NumGoroutine()
		c.Finish()
		if !ended(c) || runtime.NumGoroutine() > before {
			t.Errorf("ended: %v, %d goroutines, %d before", ended(c), runtime.NumGoroutine(), before)
		}
		if out, errs := string(c.Text(0)), string(c.Text(1)); out != written[0] || errs != written[1] {
			t.Errorf("read %d and %d bytes, want %d and %d", len(out), len(errs), len(written[0]), len(written[1]))
		}
		c.Finish()
		c.Follow()
	}
}

// A command that writes more than the pipe takes goes on when its output is followed, also if that begins late or
// twice.
func TestFollow(t *testing.T) {
	c := newCollector(t)
	text := strings.Repeat("0123456789", 100_000)
	written := make(chan error, 1)
	go func() {
		_, err := c.Theirs[0].WriteString(text)
		c.Theirs[0].Close()
		written <- err
	}()
	c.Theirs[1].Close()
	c.Follow()
	c.Follow()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	c.Finish()
	<-c.Done()
	if got := string(c.Text(0)); got != text {
		t.Errorf("read %d bytes, want %d", len(got), len(text))
	}
}

// What a process writes that the command left behind is read as long as the caller waits, and its other stream ends
// (L5.20). One that never stops does not keep Finish.
func TestLeftBehind(t *testing.T) {
	c := newCollector(t)
	if _, err := c.Theirs[0].WriteString("said,"); err != nil {
		t.Fatal(err)
	}
	c.Theirs[1].Close()
	c.Finish()
	if ended(c) || c.texts[0].b.String() != "said," {
		t.Fatalf("ended: %v, read %q", ended(c), c.texts[0].b.String())
	}
	if _, err := c.Theirs[0].WriteString("later"); err != nil {
		t.Fatal(err)
	}
	c.Theirs[0].Close()
	<-c.Done()
	if got := string(c.Text(0)); got != "said,later" {
		t.Errorf("read %q", got)
	}

	c = newCollector(t)
	c.Theirs[1].Close()
	stopped := make(chan error, 1)
	go func() {
		for {
			if _, err := c.Theirs[0].Write(make([]byte, 4096)); err != nil {
				stopped <- err // EPIPE, after Close
				return
			}
		}
	}()
	c.Finish() // returns
	if ended(c) {
		t.Error("ended while a process writes")
	}
	c.read[0].Close() // as Close does, but for the end of the process
	if err := <-stopped; err == nil {
		t.Error("the process writes to nobody")
	}
}
