package routing

import "time"

// pickerKind is how an endpoint is chosen by scores.
type pickerKind uint8

const (
	maxScore       pickerKind = iota // the highest; for equal scores the one with the fewest requests, then any
	anyScore                         // any
	weightedRandom                   // any, in proportion to the scores
)

type picker struct {
	kind     pickerKind
	reported int // number of endpoints that upstream's picker would return
}

// Decide decides about a new request. It changes nothing; after Hold, the caller adds the request
// with Enqueue.
func (p *Pool) Decide(r *Request, now time.Time) Decision {
	v := &p.work
	v.candidates(p, r, now)
	if p.flow != nil && p.config.flow == nil && p.flow.held == 0 {
		p.flow = nil // flow control was disabled, and the held requests have continued
	}
	if p.flow == nil {
		if len(v.at) == 0 {
			return p.begin(r, now)
		}
		// Without flow control, sheddable requests are refused, and none waits (2.4).
		if r.Priority < 0 && p.config.saturation.full(v) {
			return refuse(Saturated)
		}
		return p.choose(v)
	}
	if r.Subset != nil && len(v.at) == 0 {
		return refuse(NoEndpoints) // a pool without endpoints may get some; a subset is the client's choice
	}
	if len(v.at) == 0 && p.config.flow == nil && !p.starting(now) {
		return refuse(NoEndpoints) // no server will be started; held requests may wait for their timeout
	}
	if p.flow.blocks(r.Priority) || p.config.saturation.full(v) {
		if why := p.flow.full(r); why != "" {
			return refuse(why)
		}
		return Decision{Verdict: Hold}
	}
	return p.choose(v)
}

// heldReadTime is how long an autoscaler counts as active after it has read the number of held requests; autoscalers
// read it every 15 s.
const heldReadTime = 2 * time.Minute

// HeldRead records that an autoscaler has read the number of held requests: it will start a server for
// them.
func (p *Pool) HeldRead(now time.Time) { p.heldRead = now }

// starting reports whether an autoscaler will start a server for held requests.
func (p *Pool) starting(now time.Time) bool {
	return p.ready == 0 && !p.heldRead.IsZero() && now.Sub(p.heldRead) < heldReadTime
}

// begin decides on the first request for a pool without a server: it waits if an autoscaler is active. The wait ends
// with a server, with noEndpointRequestTTL, or with the client.
func (p *Pool) begin(r *Request, now time.Time) Decision {
	if r.Subset != nil || !p.starting(now) {
		return refuse(NoEndpoints)
	}
	if why := (&queues{config: p.config.start}).full(r); why != "" {
		return refuse(why)
	}
	return Decision{Verdict: Hold}
}

// choose runs the profiles.
func (p *Pool) choose(v *view) Decision {
	d := Decision{Verdict: Serve}
	all := p.config.prefill >= 0
	if all {
		v.rest = append(v.rest[:0], v.at...) // the second profile also begins with all candidates
	}
	main := &p.config.profiles[p.config.decode]
	d.N, d.Score = v.run(main, &d.Chosen)
	if d.N == 0 {
		return refuse(NoEndpoints)
	}
	v.prefix()
	d.Matched = int(v.lengths[d.Chosen[0].slot])
	if !all {
		return d
	}
	if p.config.by.disaggregates(v.r, d.Matched) {
		v.at = append(v.at[:0], v.rest...)
		var first [MostChosen]Ref
		if n, _ := v.run(&p.config.profiles[p.config.prefill], &first); n > 0 && first[0] != d.Chosen[0] {
			d.Prefill, d.HasPrefill = first[0], true
		}
	}
	return d
}

// run filters, scores, and picks.
func (v *view) run(p *profile, out *[MostChosen]Ref) (int, float64) {
	for _, f := range p.filters {
		if len(v.at) == 0 {
			return 0, 0
		}
		f.keep(v)
	}
	if len(v.at) == 0 {
		return 0, 0
	}
	v.evaluate(p.scorers)
	return v.order(p.picker.kind, MostChosen, out)
}
