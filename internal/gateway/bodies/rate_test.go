package bodies_test

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"carob/internal/gateway/bodies"
)

var start = time.Unix(1000, 0)

// arrives counts n bytes per second for a time, and returns when the body was too slow first, or the end.
func arrives(r *bodies.Rate, from time.Time, d time.Duration, n int) time.Time {
	at := from
	for at.Before(from.Add(d)) {
		at = at.Add(time.Second)
		if r.Add(n, at); r.TooSlow(at) {
			return at
		}
	}
	return at
}

// What arrives evenly has its rate from the beginning on; neither a burst nor a pause counts for long.
func TestRate(t *testing.T) {
	r := bodies.Begin(start)
	for _, d := range []time.Duration{5 * time.Second, time.Minute, time.Hour} {
		r = bodies.Begin(start)
		at := arrives(&r, start, d, 1000)
		if got := r.PerSecond(at); math.Abs(got-1000) > 100 {
			t.Errorf("%v bytes per second after %v", got, d)
		}
	}
	at := start.Add(time.Hour)
	if r.PerSecond(at.Add(10*time.Minute)) > 1 {
		t.Error("an old body counts")
	}
	r.Add(10<<20, at)
	if ended := arrives(&r, at, time.Hour, 1).Sub(at); ended < bodies.RateWindow || ended > 15*time.Minute {
		t.Errorf("a burst counts for %v", ended)
	}
	r = bodies.Begin(start)
	if got := r.PerSecond(start); got != 0 {
		t.Errorf("%v bytes per second before the first", got)
	}
	r.Add(1, start.Add(-time.Hour)) // the clock was set back
	if got := r.PerSecond(start); math.IsNaN(got) || math.IsInf(got, 0) {
		t.Error(got)
	}
}

// Only a body that stays below the least rate is too slow, and none before its time.
func TestTooSlow(t *testing.T) {
	for rate, slow := range map[int]bool{0: true, bodies.LeastRate * 9 / 10: true, bodies.LeastRate * 11 / 10: false,
		100_000: false} {
		r := bodies.Begin(start)
		ended := arrives(&r, start, time.Hour, rate)
		if got := ended.Before(start.Add(time.Hour)); got != slow || ended.Before(start.Add(bodies.RateWindow)) {
			t.Errorf("%d bytes per second: ended after %v", rate, ended.Sub(start))
		}
	}
	r := bodies.Begin(start) // 1 KB per second, and nothing for almost a minute, again and again
	for at := start; at.Before(start.Add(time.Hour)); at = at.Add(58 * time.Second) {
		next := at.Add(time.Minute)
		if at = arrives(&r, at, time.Minute, 1024); at.Before(next) {
			t.Fatal("a bad link is too slow")
		}
	}
}

// The bodies that need the longest time for what they hold end, no more than necessary; those that fill it in time, and
// those that have just begun, do not.
func TestSlowest(t *testing.T) {
	share := func(held int64, rate int, age time.Duration) bodies.Share {
		s := bodies.Share{Held: held, Rate: bodies.Begin(start.Add(-age))}
		arrives(&s.Rate, start.Add(-age), age, rate)
		return s
	}
	all := []bodies.Share{
		share(256<<10, 2000, time.Minute), // 131 s
		share(64<<10, 100, time.Minute),   // 655 s
		share(10<<20, 1_000_000, time.Minute),
		share(8<<10, 1, time.Minute),    // 8192 s
		share(10<<20, 1, time.Second),   // too young
		share(10<<20, 100, time.Minute), // 104,858 s
		share(0, 0, time.Hour),          // ends already
	}
	for bytes, want := range map[int64][]int{0: nil, -5: nil, 1: {5}, 10<<20 + 1: {5, 3}, 1 << 40: {5, 3, 1, 0}} {
		if got := bodies.Slowest(all, bytes, start); !slices.Equal(got, want) {
			t.Errorf("%d bytes: %v, want %v", bytes, got, want)
		}
	}
}

// While memory is short, slow bodies are ended, once each; it is never more than allowed, whether they give it back
// early, late, or never.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 1 << 20
		b := bodies.NewBudget(most)
		type upload struct {
			*bodies.Upload
			stopped int
		}
		begin := func() *upload {
			u := &upload{}
			u.Upload = b.Arrive(func() { u.stopped++ })
			return u
		}
		var slow []*upload
		for range most / 8 / (8 << 10) * 7 { // up to where it is short
			slow = append(slow, begin())
			if !slow[len(slow)-1].Reserve(8 << 10) {
				t.Fatal("refused")
			}
		}
		time.Sleep(bodies.ShortGrace)
		stopped := func() (out []*upload) {
			for _, u := range slow {
				if u.stopped > 1 {
					t.Fatal("stopped twice")
				}
				if u.stopped > 0 {
					out = append(out, u)
				}
			}
			return out
		}
		fresh, taken := begin(), 0
		for fresh.Reserve(8 << 10) {
			taken++
			time.Sleep(time.Second)
			fresh.Arrived(8 << 10)
		}
		first := stopped()
		// An eighth, and what was taken while none of them gave anything back.
		if taken != most/8/(8<<10) || len(first) < taken || len(first) > 2*taken {
			t.Errorf("%d were stopped, %d pieces taken", len(first), taken)
		}
		if b.Used() > most || fresh.stopped > 0 {
			t.Errorf("%d bytes are used", b.Used())
		}
		late := first[0]
		if late.Reserve(1) || late.Arrived(5000) {
			t.Error("a body that was ended goes on")
		}
		for _, u := range first[1:] {
			u.Done(false)
			u.Done(false)
			u.Reserve(-8 << 10)
		}
		late.Done(true) // it had arrived in that moment
		late.Reserve(-8 << 10)
		if !fresh.Reserve(8 << 10) {
			t.Error("what came back is not used")
		}
		for _, u := range slow {
			if u.stopped == 0 {
				u.Done(false)
				u.Reserve(-8 << 10)
			}
		}
		fresh.Done(true)
		if fresh.Reserve(-int64(taken+1) * 8 << 10); b.Used() != 0 {
			t.Errorf("%d bytes are left", b.Used())
		}
	})
}
