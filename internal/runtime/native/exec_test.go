package native

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
)

// A command's output is kept up to the limit, and one that prints nothing costs no buffer (L5.20).
func TestLimitedOutput(t *testing.T) {
	var l limited
	in := strings.Repeat("x", maxSyncOutput) + "the rest"
	if n, err := io.Copy(&l, onlyReader{strings.NewReader(in)}); n != int64(len(in)) || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if got := l.b.Len(); got != maxSyncOutput {
		t.Errorf("kept %d bytes", got)
	}
	var l2 limited
	broken := io.MultiReader(strings.NewReader("said"), io.LimitReader(brokenReader{}, 1))
	said, err := io.Copy(&l2, onlyReader{broken})
	if said != 4 || !errors.Is(err, io.ErrClosedPipe) || l2.b.String() != "said" {
		t.Errorf("read %d bytes %q, %v", said, l2.b.String(), err)
	}
	const n = 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		if _, err := io.Copy(&limited{}, onlyReader{bytes.NewReader(nil)}); err != nil {
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
	_, _ = l.Write([]byte("said"))
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = l.Write([]byte("more"))
			}
		}
	}()
	got := l.take()
	before := string(got)
	for range 100 {
		_, _ = l.Write([]byte("later"))
	}
	close(stop)
	<-stopped
	if string(got) != before || !strings.HasPrefix(before, "said") || len(l.take()) != len(got) {
		t.Errorf("%d bytes became %d", len(before), len(l.take()))
	}
}

// onlyReader has no other method.
type onlyReader struct{ io.Reader }

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }
