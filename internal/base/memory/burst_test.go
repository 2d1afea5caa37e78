package memory

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
		{"a burst on a small heap", []time.Duration{0, burstGap - 1}, 30, 300},
		{"on a very small one", []time.Duration{0, 1}, 3, startPercent},
		{"none", []time.Duration{0, 1}, 0, startPercent},
		{"on a large one", []time.Duration{0, 1}, 500, settledPercent},
		{"in between", []time.Duration{0, 1}, 50, 150},
		{"goes on though it slows down", []time.Duration{0, 1, 3 * burstGap}, 30, 300},
	} {
		p := pacer{room: burstRoom, percent: settledPercent}
		for _, at := range tc.at {
			p.collected(start.Add(at), tc.liveMB<<20)
		}
		if p.percent != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, p.percent, tc.want)
		}
	}
}

// A burst of real collections changes Go's own pace.
func TestFollowsCollections(t *testing.T) {
	t.Setenv("GOGC", "")
	defer pace(settledPercent)
	pace(startPercent)
	settled := false
	ended := make(chan error, 1)
	go func() { ended <- Follow(t.Context(), time.Nanosecond) }()
	for deadline := time.Now().Add(30 * time.Second); ; {
		runtime.GC()
		// What it was is put back at once.
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
			t.Fatalf("the pace is %d after many collections", now)
		}
	}
}

var kept []byte

func TestUnusedIsWhatIsGivenBack(t *testing.T) {
	kept = make([]byte, 3*muchUnused)
	kept = nil
	runtime.GC()
	if got := unused(); got < muchUnused {
		t.Errorf("%d bytes are unused after the garbage of %d was collected", got, 3*muchUnused)
	}
	if err := Settle(); err != nil {
		t.Fatal(err)
	}
	if got := unused(); got > muchUnused {
		t.Errorf("%d bytes are unused after all was given back", got)
	}
}
