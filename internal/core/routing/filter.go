package routing

import (
	"fmt"
	"slices"
	"time"
)

// filter removes candidates. It does not use scores.
type filter interface{ keep(v *view) }

// keepIf keeps the candidates that match.
func (v *view) keepIf(fits func(slot int32) bool) {
	kept := v.at[:0]
	for _, slot := range v.at {
		if fits(slot) {
			kept = append(kept, slot)
		}
	}
	v.at = kept
}

// anyFits reports whether any candidate matches.
func (v *view) anyFits(fits func(slot int32) bool) bool {
	return slices.ContainsFunc(v.at, fits)
}

func (f *labelFilter) keep(v *view) {
	kept := v.at[:0]
	for _, slot := range v.at {
		if v.p.ends[slot].fits&f.bit != 0 {
			kept = append(kept, slot)
		}
	}
	v.at = kept
}

// loadFilter removes endpoints that are full; if all are, none.
type loadFilter struct{ saturation }

func (f loadFilter) keep(v *view) {
	roomy := func(slot int32) bool { return f.endpoint(v, slot) < 1+f.headroom }
	if v.anyFits(roomy) {
		v.keepIf(roomy)
	}
}

// activeFilter removes endpoints that have more requests of the gateway than most.
type activeFilter struct {
	most     int64
	fallback bool // if no endpoint is left, all stay
}

func (f activeFilter) keep(v *view) {
	idle := func(slot int32) bool { return int64(v.p.loads[slot].flying) <= f.most }
	if !f.fallback || v.anyFits(idle) {
		v.keepIf(idle)
	}
}

// headroomFilter keeps the endpoints that are expected to answer as fast as the client requests;
// sometimes the others, to measure their latency.
type headroomFilter struct {
	EpsilonExploreNeg float64 `json:"epsilonExploreNeg"`
}

func (f headroomFilter) keep(v *view) {
	if len(v.at) <= 1 {
		return
	}
	known := func(slot int32) bool { _, ok := v.predictFirst(slot); return ok }
	if !v.anyFits(known) {
		return
	}
	fast := func(slot int32) bool {
		first, each, ok := v.headroom(slot)
		return ok && first >= 0 && each >= 0
	}
	slow := func(slot int32) bool { return !fast(slot) }
	switch {
	case !v.anyFits(fast):
	case v.anyFits(slow) && v.chance() <= f.EpsilonExploreNeg:
		v.keepIf(slow)
	default:
		v.keepIf(fast)
	}
}

// saturation decides when a pool is full. Either by the endpoints' metrics (queue, cache), or by
// requests and tokens in flight; a threshold of 0 is ignored.
type saturation struct {
	queue, cache     float64
	stale            time.Duration
	requests, tokens float64
	headroom         float64 // for loadFilter
}

// The defaults of utilization-detector (2.4).
func defaultSaturation() saturation {
	return saturation{queue: 5, cache: 0.8, stale: 200 * time.Millisecond}
}

// set sets thresholds that are given.
func (s *saturation) set(t thresholds) error {
	if t.QueueDepthThreshold != nil {
		s.queue = float64(*t.QueueDepthThreshold)
	}
	if t.KVCacheUtilThreshold != nil {
		s.cache = *t.KVCacheUtilThreshold
	}
	if t.MetricsStalenessThreshold != nil {
		s.stale = t.MetricsStalenessThreshold.Duration
	}
	switch {
	case s.queue <= 0:
		return fmt.Errorf("queueDepthThreshold is %g, not above 0", s.queue)
	case !(s.cache > 0 && s.cache <= 1):
		return fmt.Errorf("kvCacheUtilThreshold is %g, not above 0 and at most 1", s.cache)
	case s.stale <= 0:
		return fmt.Errorf("metricsStalenessThreshold is %s, not above 0", s.stale)
	}
	return nil
}

// unscrapedRequests is the number of requests at which a server is full in a pool whose servers have no metrics:
// upstream's default for concurrency.
const unscrapedRequests = 100

// endpoint returns the saturation of an endpoint: 1 is full. One with stale metrics counts as full,
// unless no server of the pool ever reported any.
func (s *saturation) endpoint(v *view, slot int32) (full float64) {
	l := &v.p.loads[slot]
	if s.requests > 0 {
		full = float64(l.flying) / s.requests
	}
	if s.tokens > 0 {
		full = max(full, float64(l.tokens)/s.tokens)
	}
	if s.queue <= 0 {
		return full
	}
	if v.unscraped {
		return max(full, float64(l.flying)/unscrapedRequests)
	}
	if l.scraped == 0 || v.now-l.scraped > int64(s.stale+v.p.pace) {
		return 1
	}
	waiting := max(l.waiting, l.flying-l.since-l.running)
	if l.fits > 0 { // requests sent since the scrape run while there is room, the others wait
		waiting += max(0, l.since-max(0, l.fits-l.running))
	} else if v.strict {
		waiting += l.since
	}
	return max(full, float64(waiting)/s.queue, l.cache/s.cache)
}

// full reports whether no candidate has room. Upstream takes the average, so that one server with a long queue can
// make a pool full although its other servers are idle.
func (s *saturation) full(v *view) bool {
	for _, slot := range v.at {
		if s.endpoint(v, slot) < 1 {
			return false
		}
	}
	return true
}

// of returns the average of the candidates, as upstream shows it; a pool without any is full.
func (s *saturation) of(v *view) float64 {
	if len(v.at) == 0 {
		return 1
	}
	sum := 0.0
	for _, slot := range v.at {
		sum += s.endpoint(v, slot)
	}
	return sum / float64(len(v.at))
}
