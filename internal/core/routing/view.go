package routing

import (
	"math"
	"time"
)

// view is the working state of one decision. Its slices are reused for the next one.
type view struct {
	p         *Pool
	r         *Request
	now       int64
	random    uint64
	at        []int32   // candidates: slots
	rest      []int32   // all candidates, for a second profile
	score     []float64 // by index in at
	part      []float64 // of one scorer
	lengths   []int32   // by slot: blocks of the prompt in the cache
	exact     []float64 // by slot: part of the prompt in the cache, by KV events; only with precise-prefix-cache-scorer
	found     []int32   // by slot: for Pool.known
	behind    []int32   // by slot: for Pool.known
	longest   int
	adapter   int32 // number of the target's name; -1: not an adapter of any server
	matched   bool  // lengths are filled
	unscraped bool  // no candidate was ever scraped
	strict    bool  // requests sent since a scrape count as waiting, unless there is known room
}

func (v *view) grow(slots int) {
	if cap(v.at) < slots {
		n := max(64, 2*slots)
		v.at, v.rest = make([]int32, 0, n), make([]int32, 0, n)
		v.score, v.part, v.lengths = make([]float64, n), make([]float64, n), make([]int32, n)
		v.exact, v.found, v.behind = make([]float64, n), make([]int32, n), make([]int32, n)
	}
}

// candidates starts a decision with all endpoints that may get the request.
func (v *view) candidates(p *Pool, r *Request, now time.Time) {
	v.p, v.r, v.now, v.random = p, r, now.UnixNano(), r.Random
	v.matched, v.longest, v.strict = false, 0, false
	v.adapter = -1
	if n, ok := p.names[r.target()]; ok {
		v.adapter = n
	}
	v.at, v.unscraped = v.at[:0], true
	for _, slot := range p.live {
		if p.loads[slot].serves && (r.Subset == nil || InSubset(r.Subset, p.ends[slot].Address)) {
			v.at = append(v.at, slot)
			v.unscraped = v.unscraped && p.loads[slot].scraped == 0
		}
	}
}

// prefix finds how much of the prompt each endpoint has.
func (v *view) prefix() {
	if v.matched {
		return
	}
	v.matched = true
	v.longest = v.p.known(v.r, v.lengths[:len(v.p.ends)], v.exact, time.Unix(0, v.now))
}

// hit returns the part of the prompt that an endpoint has, 0 to 1.
func (v *view) hit(slot int32) float64 {
	if len(v.r.Prefix) == 0 {
		return 0
	}
	return float64(v.lengths[slot]) / float64(len(v.r.Prefix))
}

// fresh reports whether an endpoint has metrics that are not stale.
func (v *view) fresh(l *load) bool {
	return l.scraped != 0 && v.now-l.scraped <= int64(staleLoad+v.p.pace)
}

// queue returns the number of requests that wait at an endpoint: those in its metrics, and those sent since; at
// least those of this gateway whose response has not begun, because a server that runs many at once counts an
// uncomputed prompt as running. A report of an empty queue is ignored while the server has more requests of this
// gateway than it reports as running.
func (v *view) queue(slot int32) float64 {
	l := &v.p.loads[slot]
	if !v.fresh(l) {
		return float64(l.flying)
	}
	return float64(max(l.waiting+l.since, l.unbegun, l.flying-l.running))
}

// running returns the number of requests that an endpoint runs.
func (v *view) running(slot int32) float64 {
	l := &v.p.loads[slot]
	if !v.fresh(l) {
		return float64(l.flying)
	}
	return float64(l.running + l.since)
}

// chance returns the next random number, 0 to 1.
func (v *view) chance() float64 {
	v.random += 0x9e3779b97f4a7c15
	return unit(mix(v.random))
}

// mix is the output function of splitmix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// unit makes a number above 0 and at most 1.
func unit(z uint64) float64 { return float64(z>>11+1) / (1 << 53) }

// evaluate adds up the weighted scores of a profile's scorers.
func (v *view) evaluate(all []weighted) {
	n := len(v.at)
	score, part := v.score[:n], v.part[:n]
	clear(score)
	for i := range all {
		all[i].scorer.score(v, part)
		w := all[i].weight
		for j, s := range part {
			if !(s > 0) { // below 0, and not a number
				continue
			}
			score[j] += w * min(s, 1)
		}
	}
}

// tie orders candidates with equal scores: the one with the fewest requests, then the one that got its last request the
// longest time ago, whose work is the most advanced. random decides among those that got none.
func (v *view) tie(slot int32, random float64) float64 {
	if turn := v.p.turns[slot]; turn > 0 {
		random = -float64(turn) / float64(v.p.turn)
	}
	return random - 2*float64(v.p.loads[slot].flying)
}

// order chooses the best n candidates.
func (v *view) order(k pickerKind, n int, out *[MostChosen]Ref) (chosen int, best float64) {
	var keys, ties [MostChosen]float64
	var index [MostChosen]int
	seed := v.random
	for i, slot := range v.at {
		if k == maxScore && chosen == n && v.score[i] < keys[n-1] {
			continue // most endpoints
		}
		tie := unit(mix(seed ^ uint64(slot+1)*0x9e3779b97f4a7c15)) //nolint:gosec // a slot is not negative
		key := v.score[i]
		switch k {
		case maxScore:
			tie = v.tie(slot, tie)
		case anyScore:
			key = 0
		case weightedRandom: // the smallest of exponential variables: chosen in proportion to the scores
			if key > 0 {
				key = math.Log(tie) / key
			} else {
				key = math.Inf(-1)
			}
		}
		if chosen == n && !(key > keys[n-1] || key == keys[n-1] && tie > ties[n-1]) {
			continue
		}
		j := min(chosen, n-1)
		for ; j > 0 && (key > keys[j-1] || key == keys[j-1] && tie > ties[j-1]); j-- {
			keys[j], ties[j], index[j] = keys[j-1], ties[j-1], index[j-1]
		}
		keys[j], ties[j], index[j] = key, tie, i
		chosen = min(chosen+1, n)
	}
	for j := range chosen {
		out[j] = v.p.ref(v.at[index[j]])
	}
	if chosen > 0 {
		best = v.score[index[0]]
	}
	return chosen, best
}
