package bodies

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Limits of slow bodies.
const (
	// LeastRate is what must arrive on average, in bytes per second, after the first RateWindow.
	LeastRate = 100
	// RateWindow is the time after which bytes count a third: neither a burst nor a pause counts for long.
	RateWindow = time.Minute
	// ShortFill is how long a body may need to fill its memory while memory is short; slower ones end.
	ShortFill = time.Minute
	// ShortGrace is the age at which this is known.
	ShortGrace = 5 * time.Second
)

// Rate is how fast a body arrives: the average of all the time, in which the past counts less than the present.
type Rate struct {
	began, at time.Time
	recent    float64 // bytes; what arrived a RateWindow before at counts 1/e
}

// Begin is the start of a body.
func Begin(now time.Time) Rate { return Rate{began: now, at: now} }

// Add counts n bytes that have arrived.
func (r *Rate) Add(n int, now time.Time) {
	r.recent, r.at = r.left(now)+float64(n), now
}

// left is what recent has become.
func (r *Rate) left(now time.Time) float64 { return r.recent * fade(now.Sub(r.at)) }

func fade(d time.Duration) float64 { return math.Exp(-max(0, d.Seconds()) / RateWindow.Seconds()) }

// PerSecond returns the rate.
func (r *Rate) PerSecond(now time.Time) float64 {
	// A body that has arrived evenly since it began has this many seconds in recent.
	seconds := RateWindow.Seconds() * (1 - fade(now.Sub(r.began)))
	return r.left(now) / max(seconds, 0.001)
}

// TooSlow reports whether the body must end, also if there is enough memory.
func (r *Rate) TooSlow(now time.Time) bool {
	return now.Sub(r.began) >= RateWindow && r.PerSecond(now) < LeastRate
}

// Share is the memory of a body that arrives.
type Share struct {
	Held int64
	Rate Rate
}

// Slowest chooses the bodies that end while memory is short, by their index: those that need the longest time to fill
// what they hold, until they have at least bytes together. A body that fills it within ShortFill does not end.
func Slowest(all []Share, bytes int64, now time.Time) (out []int) {
	type slow struct {
		at   int
		fill float64 // seconds
	}
	var found []slow
	for i := range all {
		s := &all[i]
		if s.Held == 0 || now.Sub(s.Rate.began) < ShortGrace {
			continue
		}
		if fill := float64(s.Held) / max(s.Rate.PerSecond(now), 0.001); fill > ShortFill.Seconds() {
			found = append(found, slow{i, fill})
		}
	}
	slices.SortFunc(found, func(a, b slow) int { return cmp.Or(cmp.Compare(b.fill, a.fill), cmp.Compare(a.at, b.at)) })
	for _, s := range found {
		if bytes <= 0 {
			break
		}
		bytes -= all[s.at].Held
		out = append(out, s.at)
	}
	return out
}
