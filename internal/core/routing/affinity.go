package routing

import "fmt"

// affinityFilter keeps the endpoints that have most of the prompt in their cache, unless their expected time to the
// first token, or their tokens in flight, exceed those of others by more than a limit.
type affinityFilter struct {
	AffinityThreshold        float64  `json:"affinityThreshold"`
	ExplorationProbability   *float64 `json:"explorationProbability"`
	MaxTTFTPenaltyMs         *float64 `json:"maxTTFTPenaltyMs"`         // 0: no limit
	MaxTokensInFlightPenalty float64  `json:"maxTokensInFlightPenalty"` // 0: no limit
	TTFTSource               string   `json:"ttftSource"`
	PeakPrefillThroughput    float64  `json:"peakPrefillThroughput"` // tokens in a second
	PrefixProducer           string   `json:"prefixMatchInfoProducerName"`
	inFlight

	explore, penalty float64
}

// peakThroughput is upstream's constant: two GPUs of a certain type with a certain model.
const peakThroughput = 15928

// Where the expected time to the first token comes from.
const (
	fromThroughput = "prefillThroughput"
	fromLatency    = "latencyPredictor"
)

// readAffinity reads the parameters. Upstream's plugin divides tokens by peakPrefillThroughput, or its constant. Where
// the configuration names neither that nor a source, carob uses what it has observed of the servers.
func readAffinity(into func(any) error) (*affinityFilter, error) {
	c := &affinityFilter{AffinityThreshold: 0.8, explore: 0.01, penalty: 5000}
	if err := into(c); err != nil {
		return nil, err
	}
	if c.PeakPrefillThroughput != 0 && c.TTFTSource == "" {
		c.TTFTSource = fromThroughput
	}
	switch c.TTFTSource {
	case fromThroughput:
		if c.PeakPrefillThroughput == 0 {
			c.PeakPrefillThroughput = peakThroughput
		}
		if !(c.PeakPrefillThroughput > 0) {
			return nil, fmt.Errorf("peakPrefillThroughput is %g, not above 0", c.PeakPrefillThroughput)
		}
		c.explore, c.penalty = 0, 18000 // the defaults of releases that have these parameters
	case "", fromLatency:
	default:
		return nil, fmt.Errorf("ttftSource is %q, neither %s nor %s", c.TTFTSource, fromThroughput, fromLatency)
	}
	if c.ExplorationProbability != nil {
		c.explore = *c.ExplorationProbability
	}
	if c.MaxTTFTPenaltyMs != nil {
		c.penalty = *c.MaxTTFTPenaltyMs
	}
	switch {
	case !(c.AffinityThreshold <= 1):
		return nil, fmt.Errorf("affinityThreshold is %g, above 1", c.AffinityThreshold)
	case !(c.explore >= 0 && c.explore <= 1):
		return nil, fmt.Errorf("explorationProbability is %g, not between 0 and 1", c.explore)
	case !(c.penalty >= 0):
		return nil, fmt.Errorf("maxTTFTPenaltyMs is %g, below 0", c.penalty)
	case !(c.MaxTokensInFlightPenalty >= 0):
		return nil, fmt.Errorf("maxTokensInFlightPenalty is %g, below 0", c.MaxTokensInFlightPenalty)
	}
	return c, nil
}

func (f *affinityFilter) keep(v *view) {
	if len(v.at) <= 1 || f.AffinityThreshold <= 0 || f.explore > 0 && v.chance() <= f.explore {
		return
	}
	v.prefix()
	sticky := func(slot int32) bool { return v.hit(slot) >= f.AffinityThreshold }
	if !v.anyFits(sticky) || f.exceeds(v, sticky, f.penalty, f.first) ||
		f.exceeds(v, sticky, f.MaxTokensInFlightPenalty, inFlightTokens) {
		return
	}
	v.keepIf(sticky)
}

// exceeds reports whether the least cost of the sticky endpoints is by more than a limit above that of the others.
func (f *affinityFilter) exceeds(v *view, sticky func(int32) bool, limit float64,
	cost func(*view, int32) (float64, bool)) bool {
	if limit <= 0 {
		return false
	}
	var best [2]float64 // of the others, and of these
	var seen [2]bool
	for _, slot := range v.at {
		c, ok := cost(v, slot)
		if !ok {
			continue
		}
		kind := 0
		if sticky(slot) {
			kind = 1
		}
		if !seen[kind] || c < best[kind] {
			best[kind], seen[kind] = c, true
		}
	}
	return seen[0] && seen[1] && best[1]-best[0] > limit
}

// first is the expected time to the first token, in milliseconds.
func (f *affinityFilter) first(v *view, slot int32) (float64, bool) {
	if f.TTFTSource == fromThroughput {
		t, ok := inFlightTokens(v, slot)
		return t / f.PeakPrefillThroughput * 1000, ok
	}
	took, ok := v.predictFirst(slot)
	return took * 1000, ok
}

// inFlightTokens are those of prompts that an endpoint has not answered yet, as far as they are not in its cache.
func inFlightTokens(v *view, slot int32) (float64, bool) {
	return float64(v.p.loads[slot].tokens), true
}
