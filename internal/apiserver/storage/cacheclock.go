package storage

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// A list of the newest state waits until the watch cache has received everything stored. The
	// cache requests the store's revision ten times a second, so a list right after a write would
	// wait for up to 100 ms. For a store in the same process, the request costs microseconds, and
	// it is only sent while a list waits.
	libraryProgress = 100 * time.Millisecond
	progressPeriod  = 2 * time.Millisecond
	// Each cache has periodic work about once a second: bookmarks for clients that want them every
	// minute, before their watch ends, or after their first list. The caches do it at the same
	// time, and the process sleeps in between. Without such clients it may wait.
	shortestHousework = 500 * time.Millisecond
	longestHousework  = 2 * time.Second
	houseworkPeriod   = time.Second
	idlePeriod        = 10 * time.Second
	// Parts of this process want a bookmark after their first list only.
	inProcessAttention = 5 * time.Second
)

// cacheClock is the clock of a watch cache on an embedded store. It controls the cache's timers,
// for which the library has no options.
//
//	idle: periodic work each 10 s ──a watch──▶ attended: each second ──the last client's watch ends──▶ idle
type cacheClock struct {
	clock.RealClock
	start time.Time // the same for all caches, so that they run at the same time

	mu        sync.Mutex
	clients   int       // number of watches of clients that want bookmarks
	until     time.Time // a part of this process has a watch
	housework *cacheTimer
}

// client counts a watch of a client that requests bookmarks, until left is called.
func (p *cacheClock) client() (left func()) {
	p.attend(1, time.Time{})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.clients--
	}
}

// inProcess records a watch of a part of this process.
func (p *cacheClock) inProcess() { p.attend(0, time.Now().Add(inProcessAttention)) }

func (p *cacheClock) attend(clients int, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	idle := !p.attended(now)
	p.clients += clients
	if until.After(p.until) {
		p.until = until
	}
	if t := p.housework; idle && t != nil && t.slow {
		t.set(houseworkPeriod, now)
	}
}

// attended reports whether a client waits for bookmarks. Call with mu held.
func (p *cacheClock) attended(now time.Time) bool { return p.clients > 0 || now.Before(p.until) }

// NewTimer implements clock.Clock.
func (p *cacheClock) NewTimer(d time.Duration) clock.Timer {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	t := &cacheTimer{Timer: p.RealClock.NewTimer(p.adjust(d, now)), clock: p}
	if isHousework(d) {
		t.slow = !p.attended(now)
		p.housework = t
	}
	return t
}

func isHousework(d time.Duration) bool { return d >= shortestHousework && d < longestHousework }

// adjust returns the duration of a timer that is set to d at now. Call with mu held.
func (p *cacheClock) adjust(d time.Duration, now time.Time) time.Duration {
	if d == libraryProgress {
		return progressPeriod
	}
	if d < shortestHousework {
		return d
	}
	since := now.Sub(p.start)
	if isHousework(d) && !p.attended(now) {
		return since.Truncate(idlePeriod) + idlePeriod - since
	}
	return (since + d).Round(houseworkPeriod) - since
}

// cacheTimer is a timer of a cache.
type cacheTimer struct {
	clock.Timer
	clock *cacheClock
	slow  bool // set while no client waited for bookmarks; protected by clock.mu
}

// Reset implements clock.Timer.
func (t *cacheTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.set(d, time.Now())
}

// set sets the timer. Call with clock.mu held.
func (t *cacheTimer) set(d time.Duration, now time.Time) bool {
	t.slow = isHousework(d) && !t.clock.attended(now)
	return t.Timer.Reset(t.clock.adjust(d, now))
}
