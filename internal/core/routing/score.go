package routing

import (
	"math"
	"slices"
)

// scorer gives each candidate a score; out has one entry for each of v.at. Scores are limited to 0 to 1.
type scorer interface {
	score(v *view, out []float64)
}

// spread turns amounts into scores: the least gets 1, the most 0; if all are equal all get 1.
func spread(out []float64) {
	if len(out) == 0 {
		return
	}
	least, most := out[0], out[0]
	for _, x := range out {
		least, most = min(least, x), max(most, x)
	}
	if least == most {
		for i := range out {
			out[i] = 1
		}
		return
	}
	scale := 1 / (most - least)
	for i, x := range out {
		out[i] = (most - x) * scale
	}
}

type queueScorer struct{}

func (queueScorer) score(v *view, out []float64) {
	for i, slot := range v.at {
		out[i] = v.queue(slot)
	}
	spread(out)
}

type runningScorer struct{}

func (runningScorer) score(v *view, out []float64) {
	for i, slot := range v.at {
		out[i] = v.running(slot)
	}
	spread(out)
}

type cacheScorer struct{}

func (cacheScorer) score(v *view, out []float64) {
	for i, slot := range v.at {
		out[i] = 1 - v.p.loads[slot].cache
	}
}

// adapterScorer prefers servers that run the adapter, then those with room for it, then those that wait for it. A name
// that is not an adapter of any server is a base model: all are equal.
type adapterScorer struct{}

func (adapterScorer) score(v *view, out []float64) {
	for i, slot := range v.at {
		l, e := &v.p.loads[slot], &v.p.ends[slot]
		switch {
		case v.adapter >= 0 && l.loaded > 0 && has(e.active, v.adapter):
			out[i] = 1
		case l.loaded < l.slots:
			out[i] = 0.8
		case v.adapter >= 0 && has(e.queued, v.adapter):
			out[i] = 0.6
		default:
			out[i] = 0
		}
	}
}

func has(all []int32, n int32) bool { return slices.Contains(all, n) }

// prefixScorer prefers servers that have the prompt in their cache.
type prefixScorer struct{ length float64 }

// matchedTokens is the length of a match beyond which longer ones are not better.
const matchedTokens = 8192

func (s prefixScorer) score(v *view, out []float64) {
	v.prefix()
	if len(v.r.Prefix) == 0 || v.longest == 0 {
		clear(out)
		return
	}
	perBlock := float64(v.p.Hasher().block / bytesPerToken)
	for i, slot := range v.at {
		out[i] = v.hit(slot)
		if s.length > 0 {
			long := min(1, float64(v.lengths[slot])*perBlock/matchedTokens)
			out[i] = (1-s.length)*out[i] + s.length*long*long
		}
	}
}

// activeScorer prefers servers with few requests of this gateway.
type activeScorer struct{}

func (activeScorer) score(v *view, out []float64) {
	most := int32(0)
	for _, slot := range v.at {
		most = max(most, v.p.loads[slot].flying)
	}
	for i, slot := range v.at {
		out[i] = 1
		if n := v.p.loads[slot].flying; n > 0 {
			out[i] = float64(most-n) / float64(most)
		}
	}
}

// loadAwareScorer gives a server without a queue 0.5, and one whose queue is at the threshold 0.
type loadAwareScorer struct {
	Threshold int `json:"threshold"`
}

func (s loadAwareScorer) score(v *view, out []float64) {
	most := float64(s.Threshold)
	for i, slot := range v.at {
		out[i] = 0.5 * (1 - min(v.queue(slot), most)/most)
	}
}

// tokenScorer prefers servers with few tokens of prompts to work on.
type tokenScorer struct {
	QueueThresholdTokens int64 `json:"queueThresholdTokens"`
}

func (s tokenScorer) score(v *view, out []float64) {
	for i, slot := range v.at {
		out[i] = 1 - min(float64(v.p.loads[slot].tokens)/float64(s.QueueThresholdTokens), 1)
	}
}

// coldScorer spreads prompts that no server has cached: the server that got its last uncached
// prompt the longest time ago comes first.
type coldScorer struct{}

func (coldScorer) score(v *view, out []float64) {
	v.prefix()
	if v.longest > 0 {
		for i := range out {
			out[i] = 0.5
		}
		return
	}
	for i, slot := range v.at {
		out[i] = float64(v.p.ends[slot].cold)
	}
	spread(out)
}

// workScorer prefers the server with the least work until the first token of the request: the tokens of prompts that
// wait there or are being computed, and those of this prompt that are not in its cache. Work is counted in tokens. A
// score is the least work divided by that of the server, so that small differences count little: scores that are spread
// between the least and the most make any difference count in full.
type workScorer struct {
	// UncachedWeight is how often tokens of this prompt count. Above 1, so that a prompt goes where it is cached until
	// the wait there is longer than what computing it again would take: each copy of it displaces another prompt from a
	// cache, and delays the others of its server.
	UncachedWeight float64 `json:"uncachedWeight"`
	// RunningTokens is what a request that is being answered counts: it slows down the others.
	RunningTokens float64 `json:"runningTokens"`
}

// The parameters of workScorer without a configuration, by internal/sim/inference (docs/performance.md).
func defaultWork() workScorer { return workScorer{UncachedWeight: 2.5, RunningTokens: 64} }

const (
	promptOverhead = 80  // tokens that could be computed in the time that each prompt takes in addition
	foreignPrompt  = 256 // least tokens of prompts of which only the number is known, because others sent them
)

func (s workScorer) score(v *view, out []float64) {
	v.prefix()
	own := float64(v.r.tokens())
	foreign := max(own, foreignPrompt)
	least := math.Inf(1)
	for i, slot := range v.at {
		l := &v.p.loads[slot]
		work := promptOverhead*float64(1+l.unbegun) + float64(l.tokens) + s.RunningTokens*v.running(slot) +
			s.UncachedWeight*own*(1-v.hit(slot))
		if v.fresh(l) {
			work += foreign * float64(l.foreign)
		}
		out[i], least = work, min(least, work)
	}
	for i, work := range out {
		out[i] = least / work
	}
}
