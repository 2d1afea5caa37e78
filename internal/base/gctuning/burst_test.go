package gctuning

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPaceOfABurst(t *testing.T) {
	start := time.Now()
	type collection struct {
		at          time.Duration
		allocatedMB uint64
	}
	for _, tc := range []struct {
		name   string
		made   []collection
		keptMB uint64
		want   int
	}{
		{"the first", []collection{{0, 100}}, 30, settledPercent},
		{"far apart", []collection{{0, 100}, {burstGap, 200}, {3 * burstGap, 900}}, 30, settledPercent},
		{"a burst begins", []collection{{0, 100}, {burstGap - 1, 900}}, 20, 75},
		{"on a larger heap", []collection{{0, 100}, {1, 900}}, 60, settledPercent},
		{"it goes on", []collection{{0, 100}, {1, 120}, {2, 140}}, 20, 75},
		{"for longer", []collection{{0, 100}, {1, 120}, {2, 376}}, 20, 300},
		{"a long one", []collection{{0, 100}, {1, 120}, {2, 120 + 444}}, 60, 300},
		{"a very long one", []collection{{0, 100}, {1, 120}, {2, 100_000}}, 60, 300},
		{"on a very small heap", []collection{{0, 100}, {1, 120}}, 3, startPercent},
		{"on none", []collection{{0, 100}, {1, 120}}, 0, startPercent},
		{"a long one on a large heap", []collection{{0, 100}, {1, 120}, {2, 100_000}}, 500, settledPercent},
		{"goes on though it slows down", []collection{{0, 100}, {1, 120}, {2, 376}, {3 * burstGap, 9000}}, 20, 300},
	} {
		p := tuner{room: burstRoom}
		p.settled(7)
		for i, c := range tc.made {
			p.collected(start.Add(c.at), uint64(8+i), tc.keptMB<<20, c.allocatedMB<<20)
		}
		if p.percent != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, p.percent, tc.want)
		}
	}
}

// The collections of a Settle are announced after it, and no burst: there would be a Settle after each.
func TestSettleIsNoBurst(t *testing.T) {
	start := time.Now()
	p := tuner{room: burstRoom}
	p.settled(9)
	for range 3 {
		if p.collected(start, 9, 30<<20, 1<<30) {
			t.Error("the collections of a Settle are a burst")
		}
	}
	if p.collected(start, 10, 30<<20, 1<<30) || !p.collected(start, 11, 30<<20, 1<<30) || p.began == 0 {
		t.Error("the next ones are none")
	}
	p.settled(13)
	if p.collected(start, 13, 30<<20, 1<<30) || p.percent != settledPercent || p.began != 0 {
		t.Errorf("after the next Settle: %+v", p)
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
	percent := debug.SetGCPercent(-1) // no collection between the allocation and the figures
	kept = make([]byte, 2*muchSpare)
	kept[0] = 1
	use := used()
	debug.SetGCPercent(percent)
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
