package gctuning

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPaceOfABurst(t *testing.T) {
	start := time.Now()
	for _, tc := range []struct {
		name   string
		at     []time.Duration // collections
		liveMB uint64
		want   int
	}{
		{"the first", []time.Duration{0}, 30, settledPercent},
		{"far apart", []time.Duration{0, burstGap, 3 * burstGap}, 30, settledPercent},
		{"a burst begins", []time.Duration{0, burstGap - 1}, 20, 150},
		{"on a larger heap", []time.Duration{0, 1}, 60, settledPercent},
		{"it goes on", []time.Duration{0, 1, 2}, 20, 300},
		{"for longer", []time.Duration{0, 1, 2, 3}, 60, 200},
		{"a long one", []time.Duration{0, 1, 2, 3, 4, 5, 6}, 60, 300},
		{"on a very small heap", []time.Duration{0, 1}, 3, startPercent},
		{"on none", []time.Duration{0, 1}, 0, startPercent},
		{"a long one on a large heap", []time.Duration{0, 1, 2, 3, 4, 5}, 500, settledPercent},
		{"in between", []time.Duration{0, 1, 2, 3, 4, 5}, 100, 150},
		{"goes on though it slows down", []time.Duration{0, 1, 2, 3 * burstGap}, 20, 300},
	} {
		p := tuner{room: burstRoom, percent: settledPercent}
		for _, at := range tc.at {
			p.collected(start.Add(at), tc.liveMB<<20)
		}
		if p.percent != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, p.percent, tc.want)
		}
	}
}

func TestWorthSettling(t *testing.T) {
	for _, tc := range []struct {
		name             string
		allocated, spare uint64 // MB
		want             bool
	}{
		{"an idle cluster after minutes", 20, 15, false},
		{"the same for long", 33, 5, false},
		{"after a thousand watches have begun", 100, 10, true},
		{"what a long list took", 30, 25, true},
	} {
		settled := use{allocated: 1 << 30}
		if got := (use{settled.allocated + tc.allocated<<20, tc.spare << 20}).worthSettling(settled); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}

// A burst of real collections changes Go's own setting.
func TestFollowsCollections(t *testing.T) {
	t.Setenv("GOGC", "")
	defer setPercent(settledPercent)
	setPercent(startPercent)
	settled := false
	ended := make(chan error, 1)
	go func() { ended <- Follow(t.Context(), time.Nanosecond) }()
	for deadline := time.Now().Add(30 * time.Second); ; {
		runtime.GC()
		// The setting is restored at once.
		now := debug.SetGCPercent(-1)
		debug.SetGCPercent(now)
		switch {
		case now == settledPercent:
			settled = true
		case settled && now > settledPercent:
			return
		}
		select {
		case err := <-ended:
			t.Fatalf("ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("the percentage is %d after many collections", now)
		}
	}
}

var kept []byte

// Memory allocated since the last collection may be garbage; after Settle it is known to be in use.
func TestSpare(t *testing.T) {
	if err := Settle(); err != nil {
		t.Fatal(err)
	}
	start := used()
	if start.spare > muchSpare {
		t.Errorf("%d bytes to spare after all was given back", start.spare)
	}
	kept = make([]byte, 2*muchSpare)
	kept[0] = 1
	use := used()
	if use.spare < muchSpare || use.allocated-start.allocated < 2*muchSpare {
		t.Errorf("%d bytes to spare and %d allocated after %d were made", use.spare, use.allocated-start.allocated,
			len(kept))
	}
	if err := Settle(); err != nil {
		t.Fatal(err)
	}
	if got := used(); got.spare > muchSpare {
		t.Errorf("%d bytes to spare, which are in use", got.spare)
	}
	runtime.KeepAlive(kept)
	kept = nil
}

func TestNeedToSettle(t *testing.T) {
	full, empty := use{100 << 20, 30 << 20}, use{100 << 20, 1 << 20}
	n := need{}
	for _, step := range []struct {
		what                   string
		now                    use
		quiet, burst, starting bool
		want                   bool
	}{
		{"the start", empty, false, false, true, true},
		{"nothing to release", empty, true, false, false, false},
		{"much to release, but busy", full, false, false, false, false},
		{"much to release", full, true, false, false, true},
		{"a burst that goes on with few collections", full, false, true, false, true},
		{"it goes on slowly", empty, false, false, false, false},
		{"it has ended", empty, true, false, false, true},
		{"and nothing came after", empty, true, false, false, false},
		{"a burst that has ended", full, true, true, false, true},
		{"and nothing came after that", empty, true, false, false, false},
	} {
		if got := n.check(step.now, step.quiet, step.burst, step.starting); got != step.want {
			t.Errorf("%s: %t", step.what, got)
		}
	}
}
