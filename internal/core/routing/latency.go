package routing

import "math"

// latency is the latency model of a server, fitted to observations: the time to the first token by tokens to compute
// before it, and the time for each further token by requests beside it.
type latency struct{ first, each line }

// line is a straight line through observations, the older ones counting less.
type line struct{ n, x, y, xx, xy float64 }

const (
	fade    = 0.98 // of the weight of an observation with each later one: about the last 50 count
	enough  = 5    // observations before a server's own model is used
	longest = 3600 // upper bound of one observation, in seconds
)

func (l *line) add(x, y float64) {
	if !(x >= 0 && x < 1e12) || !(y >= 0) {
		return
	}
	y = min(y, longest)
	l.n = l.n*fade + 1
	l.x, l.y = l.x*fade+x, l.y*fade+y
	l.xx, l.xy = l.xx*fade+x*x, l.xy*fade+x*y
}

// at returns the expected value; which never decreases with more work.
func (l *line) at(x float64) float64 {
	mean := l.y / l.n
	det := l.n*l.xx - l.x*l.x
	if det <= 1e-9*l.n*l.xx {
		return mean
	}
	slope := max((l.n*l.xy-l.x*l.y)/det, 0)
	value := mean + slope*(x-l.x/l.n)
	return max(value, 0)
}

// predictFirst returns the expected time to the first token, in seconds.
func (v *view) predictFirst(slot int32) (float64, bool) {
	v.prefix()
	x := float64(v.p.loads[slot].tokens) + float64(v.r.tokens())*(1-v.hit(slot))
	return v.p.expect(&v.p.ends[slot].latency.first, &v.p.all.first, x)
}

// predictEach returns the expected time for each token after the first one, in seconds.
func (v *view) predictEach(slot int32) (float64, bool) {
	return v.p.expect(&v.p.ends[slot].latency.each, &v.p.all.each, float64(v.p.loads[slot].flying))
}

func (p *Pool) expect(own, all *line, x float64) (float64, bool) {
	switch {
	case own.n >= enough*0.9: // the weights fade: 5 observations weigh 4.8
		return own.at(x), true
	case all.n >= enough*0.9:
		return all.at(x), true
	}
	return 0, false
}

// headroom returns the requested latency minus the expected one, in seconds. A request without a requested latency
// counts as requesting 0, as upstream.
func (v *view) headroom(slot int32) (first, each float64, known bool) {
	t, ok := v.predictFirst(slot)
	if !ok {
		return 0, 0, false
	}
	first = v.r.TTFT.Seconds() - t
	if e, ok := v.predictEach(slot); ok {
		each = v.r.TPOT.Seconds() - e
	}
	return first, each, true
}

// latencyScorer prefers servers by the expected latency: without a requested latency, the fastest; with one, servers
// that meet it come before the others, and "least" prefers those that just meet it, so that the fast ones stay free.
type latencyScorer struct {
	TTFTWeight                float64 `json:"ttftWeight"`
	TPOTWeight                float64 `json:"tpotWeight"`
	HeadroomSelectionStrategy string  `json:"headroomSelectionStrategy"`
	CompositeKVWeight         float64 `json:"compositeKVWeight"`
	CompositeQueueWeight      float64 `json:"compositeQueueWeight"`
	CompositePrefixWeight     float64 `json:"compositePrefixWeight"`
}

func (s latencyScorer) score(v *view, out []float64) {
	known := false
	for i, slot := range v.at {
		first, each, ok := v.headroom(slot)
		if !ok {
			out[i] = math.NaN()
			continue
		}
		known = true
		out[i] = s.TTFTWeight*first + s.TPOTWeight*each
	}
	if !known {
		s.composite(v, out)
		return
	}
	low, high := [2]float64{math.Inf(1), math.Inf(1)}, [2]float64{math.Inf(-1), math.Inf(-1)} // too slow; fast enough
	for _, room := range out {
		if !math.IsNaN(room) {
			k := tier(room)
			low[k], high[k] = min(low[k], room), max(high[k], room)
		}
	}
	for i, room := range out {
		if math.IsNaN(room) {
			out[i] = 0.25
			continue
		}
		k := tier(room)
		part := 1.0
		if high[k] > low[k] {
			part = (room - low[k]) / (high[k] - low[k])
			if k == 1 && s.HeadroomSelectionStrategy == "least" {
				part = 1 - part
			}
		}
		out[i] = (float64(k) + part) / 2
	}
}

func tier(room float64) int {
	if room >= 0 {
		return 1
	}
	return 0
}

// composite is used before there are observations.
func (s latencyScorer) composite(v *view, out []float64) {
	sum := s.CompositeKVWeight + s.CompositeQueueWeight + s.CompositePrefixWeight
	if sum <= 0 {
		clear(out)
		return
	}
	for i, slot := range v.at {
		out[i] = v.queue(slot)
	}
	spread(out)
	for i, slot := range v.at {
		out[i] = (s.CompositeQueueWeight*out[i] + s.CompositeKVWeight*(1-v.p.loads[slot].cache) +
			s.CompositePrefixWeight*v.hit(slot)) / sum
	}
}
