package storage

import (
	"time"

	"k8s.io/utils/clock"
)

const (
	// A list that must show the newest state waits until the watch cache has seen
	// all that is stored. The cache asks the store how far it is ten times a
	// second, so that a list right after a write would wait for up to 100 ms. To
	// ask a store in the same process costs microseconds, and nobody asks unless
	// somebody waits.
	libraryProgress = 100 * time.Millisecond
	progressPeriod  = 2 * time.Millisecond
	// Each of some thirty caches has housework about once a second. They do it
	// together, and the process sleeps in between.
	shortestHousework = 500 * time.Millisecond
	houseworkPeriod   = time.Second
)

// pace is the clock of the watch caches on an embedded store. It sets their
// timers, for which the library has no options.
type pace struct {
	clock.RealClock
	start time.Time
}

// NewTimer implements clock.Clock.
func (p pace) NewTimer(d time.Duration) clock.Timer {
	return pacedTimer{p.RealClock.NewTimer(p.adjust(d, time.Now())), p}
}

// adjust returns how long a timer runs that is set to d at now.
func (p pace) adjust(d time.Duration, now time.Time) time.Duration {
	if d == libraryProgress {
		return progressPeriod
	}
	if d < shortestHousework {
		return d
	}
	since := now.Sub(p.start)
	return (since + d).Round(houseworkPeriod) - since
}

type pacedTimer struct {
	clock.Timer
	pace pace
}

func (t pacedTimer) Reset(d time.Duration) bool { return t.Timer.Reset(t.pace.adjust(d, time.Now())) }
