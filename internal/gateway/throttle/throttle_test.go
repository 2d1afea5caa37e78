package throttle

import (
	"testing"
	"time"
)

// loop runs rounds of one length, each as soon as the one before allows it, and returns the time that all take.
func loop(p *Throttle, rounds int, each time.Duration) time.Duration {
	began := time.Unix(1000, 0)
	now := began
	for range rounds {
		ended := now.Add(each)
		now = ended.Add(p.Ended(now, ended))
	}
	return now.Sub(began)
}

// Changes of few routes are followed at once: no round waits until Burst is used.
func TestFewRoundsDoNotWait(t *testing.T) {
	if took := loop(&Throttle{}, 100, time.Millisecond); took != Burst {
		t.Errorf("100 rounds of 1 ms took %v", took)
	}
}

// Many rounds take half of the time, whatever their length is.
func TestManyRoundsTakeHalf(t *testing.T) {
	for _, each := range []time.Duration{time.Millisecond, 50 * time.Millisecond, 700 * time.Millisecond} {
		const rounds = 1000
		all := rounds * each
		if took := loop(&Throttle{}, rounds, each); took < 2*all-Burst || took > 2*all {
			t.Errorf("%d rounds of %v took %v", rounds, each, took)
		}
	}
}

// After any rounds the wait is at most Longest, and idle time makes rounds free again.
func TestWaitIsBounded(t *testing.T) {
	p := &Throttle{}
	at := time.Unix(1000, 0)
	for range 3 {
		ended := at.Add(time.Minute)
		if wait := p.Ended(at, ended); wait != Longest {
			t.Errorf("a round of a minute is followed by a wait of %v", wait)
		}
		at = ended
	}
	for _, c := range []struct{ idle, wait time.Duration }{{Longest, time.Millisecond}, {Burst, 0}, {time.Hour, 0}} {
		at = at.Add(c.idle)
		ended := at.Add(time.Millisecond)
		if wait := p.Ended(at, ended); wait != c.wait {
			t.Errorf("a round of 1 ms after %v: a wait of %v, want %v", c.idle, wait, c.wait)
		}
		at = ended
	}
}

// A clock that goes back allows no more and no less.
func TestClockGoesBack(t *testing.T) {
	p := &Throttle{}
	at := time.Unix(1000, 0)
	p.Ended(at, at.Add(Burst))
	if wait := p.Ended(at.Add(-time.Hour), at.Add(-2*time.Hour)); wait != 0 {
		t.Errorf("waits %v", wait)
	}
	if wait := p.Ended(at.Add(-2*time.Hour), at.Add(-2*time.Hour+Burst)); wait != Burst {
		t.Errorf("waits %v", wait)
	}
}
