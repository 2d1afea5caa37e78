package summary

import (
	"sync"
	"time"
)

const (
	shortestRate = time.Second      // between two samples from which a rate is computed
	longestRate  = 10 * time.Minute // then a sample that nothing has been compared with is forgotten
)

// rates computes how much CPU time is used per second, from the samples of successive requests: the first one for a
// container has no rate (S12.44).
type rates struct {
	mu    sync.Mutex
	known map[string]rate
}

type rate struct {
	at    time.Time
	usage uint64
	last  *uint64 // nil: there was one sample only
}

// fill sets the rate of what key names, unless its source had one.
func (r *rates) fill(key string, c *CPU) {
	if c == nil || c.UsageCoreNanoSeconds == nil || c.UsageNanoCores != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old, ok := r.known[key]
	now := rate{at: c.Time, usage: *c.UsageCoreNanoSeconds}
	switch passed := c.Time.Sub(old.at); {
	case !ok || passed < 0 || passed > longestRate || now.usage < old.usage: // the clock or the counter began anew
	case passed < shortestRate:
		c.UsageNanoCores = old.last
		return
	default:
		v := uint64(float64(now.usage-old.usage) / passed.Seconds())
		now.last = &v
	}
	if r.known == nil {
		r.known = map[string]rate{}
	}
	r.known[key], c.UsageNanoCores = now, now.last
}

// sweep forgets what has ended.
func (r *rates) sweep(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, old := range r.known { // any order: each by itself
		if now.Sub(old.at).Abs() > longestRate {
			delete(r.known, key)
		}
	}
}
