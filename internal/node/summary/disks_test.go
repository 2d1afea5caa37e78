package summary

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// newDisks never lets a measurement become slow by itself.
func newDisks(t *testing.T) *disks {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return &disks{ctx: ctx, slow: time.Hour}
}

func one(v uint64) []Fs { return []Fs{{UsedBytes: &v}} }

// However often it is requested, a volume is measured once in its period; what is not requested any more is removed.
func TestMeasuredOnce(t *testing.T) {
	d := newDisks(t)
	calls := map[string]int{}
	m := func(key string, period time.Duration) measurement {
		return measurement{key, period, func(context.Context) []Fs { calls[key]++; return one(uint64(calls[key])) }}
	}
	var got map[string][]Fs
	for range 3 {
		got = d.read(t.Context(), []measurement{m("a", time.Hour), m("b", 0)})
	}
	if calls["a"] != 1 || calls["b"] != 3 || *got["a"][0].UsedBytes != 1 || *got["b"][0].UsedBytes != 3 {
		t.Errorf("%v: %v", calls, got)
	}
	if got = d.read(t.Context(), []measurement{m("b", time.Hour)}); len(got) != 1 || len(d.known) != 1 {
		t.Errorf("%v", got)
	}
}

// A disk that does not respond keeps neither a request nor the other disks waiting, and is not measured again before it
// has responded; the result is shown then.
func TestStuckDisk(t *testing.T) {
	d := newDisks(t)
	d.slow = 0
	begun, release, answered := make(chan struct{}, 8), make(chan struct{}), make(chan struct{})
	stuck := measurement{"stuck", 0, func(context.Context) []Fs {
		begun <- struct{}{}
		<-release
		defer close(answered)
		return one(7)
	}}
	fine := measurement{"fine", time.Hour, func(context.Context) []Fs { return one(1) }}
	list := []measurement{stuck, fine}
	got := d.read(t.Context(), list)
	for got["fine"] == nil && t.Context().Err() == nil {
		got = d.read(t.Context(), list)
	}
	<-begun
	if got["stuck"] != nil || len(begun) != 0 {
		t.Errorf("%v, asked %d times more", got, len(begun))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	d.read(ended, list) // does not wait
	close(release)
	<-answered
	list[0].period = time.Hour
	for got = d.read(t.Context(), list); got["stuck"] == nil && t.Context().Err() == nil; {
		got = d.read(t.Context(), list)
	}
	if *got["stuck"][0].UsedBytes != 7 {
		t.Errorf("%v", got)
	}
}

// A request that ends does not wait; after the end of the server nothing is measured.
func TestReadersDoNotWaitForEver(t *testing.T) {
	d := newDisks(t)
	release, done := make(chan struct{}), make(chan struct{})
	list := []measurement{{"a", time.Hour, func(context.Context) []Fs { defer close(done); <-release; return one(1) }}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := d.read(ctx, list); len(got) != 0 {
		t.Errorf("%v", got)
	}
	close(release)
	<-done
	over, stop := context.WithCancel(t.Context())
	stop()
	d = &disks{ctx: over}
	if got := d.read(t.Context(), list); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// What a directory uses, on the file system that it is on; a missing one is not known.
func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	got := directory(t.Context(), dir)
	if len(got) != 1 || *got[0].UsedBytes < 64<<10 || *got[0].UsedBytes > 80<<10 || *got[0].InodesUsed != 2 ||
		*got[0].CapacityBytes == 0 || got[0].Time.IsZero() {
		t.Errorf("%+v", got)
	}
	if directory(t.Context(), filepath.Join(dir, "none")) != nil || fileSystem("") != nil ||
		fileSystem(dir+"/none") != nil || blockDevice(dir+"/none") != nil {
		t.Error("something missing has figures")
	}
	if got := blockDevice(filepath.Join(dir, "f")); len(got) != 1 || *got[0].CapacityBytes != 64<<10 ||
		got[0].UsedBytes != nil {
		t.Errorf("%+v", got)
	}
}
