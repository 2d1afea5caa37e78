package storage

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPace(t *testing.T) {
	start := time.Now()
	p := &cacheClock{start: start, clients: 1}
	for _, tc := range []struct{ at, d, want time.Duration }{
		{0, libraryProgress, progressPeriod},
		{0, 0, 0},
		{0, 10 * time.Millisecond, 10 * time.Millisecond},
		{0, 750 * time.Millisecond, time.Second},
		{time.Second, 1250 * time.Millisecond, time.Second},
		{1010 * time.Millisecond, 760 * time.Millisecond, 990 * time.Millisecond},
		{300 * time.Millisecond, 15 * time.Second, 14700 * time.Millisecond},
	} {
		if got := p.adjust(tc.d, start.Add(tc.at)); got != tc.want {
			t.Errorf("%v at %v: %v, want %v", tc.d, tc.at, got, tc.want)
		}
	}
}

// Caches with different jitter wake the process once for all of them.
func TestHouseworkTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &cacheClock{start: time.Now()}
		a, b := p.NewTimer(760*time.Millisecond), p.NewTimer(1240*time.Millisecond)
		for range 5 {
			at := <-a.C()
			if bt := <-b.C(); !at.Equal(bt) {
				t.Fatalf("one at %v, the other at %v", at.Sub(p.start), bt.Sub(p.start))
			}
			a.Reset(1200 * time.Millisecond)
			b.Reset(800 * time.Millisecond)
		}
	})
}

// Without clients that want bookmarks a cache sleeps; the first wakes it.
func TestHouseworkWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &cacheClock{start: time.Now()}
		housework := p.NewTimer(time.Second)
		next := func(want time.Duration) {
			t.Helper()
			before := time.Now()
			if got := (<-housework.C()).Sub(before); got != want {
				t.Errorf("after %v, want %v", got, want)
			}
			housework.Reset(time.Second)
		}
		next(idlePeriod)
		time.AfterFunc(4*time.Second, p.inProcess)
		next(5 * time.Second) // it is due one second after the watch
		for range 5 {
			next(houseworkPeriod)
		}
		next(10 * time.Second) // at the same time again
		left := p.client()
		other := p.client()
		next(houseworkPeriod)
		left()
		for range 20 {
			next(houseworkPeriod)
		}
		other()
		next(houseworkPeriod)
		next(8 * time.Second)
		next(idlePeriod)
	})
}
