package inference

import (
	"slices"
	"time"

	"carob/internal/core/routing"
	"carob/internal/sim/fakeapi"
)

// checkServe checks a request that is served.
func (w *world) checkServe(r *request) {
	for _, o := range w.held {
		if o.facts.Priority > r.facts.Priority {
			fakeapi.Break(Order, "a request of priority %d is served, one of %d waits", r.facts.Priority, o.facts.Priority)
		}
	}
}

// checkRefusal checks a request that is refused.
func (w *world) checkRefusal(r *request, why routing.Reason) {
	switch why {
	case routing.Saturated:
		if !w.flow && r.facts.Priority >= 0 && len(w.held) < heldAtMost {
			fakeapi.Break(Order, "a request of priority %d is refused", r.facts.Priority)
		}
		if w.flow && len(w.held) < heldAtMost {
			fakeapi.Break(Order, "a request is refused, %d are held", len(w.held))
		}
	case routing.NoEndpoints:
		if len(w.endpoints) > 0 {
			fakeapi.Break(Works, "%s, the pool has %d", why, len(w.endpoints))
		}
		if w.scaler && w.now.Before(r.until()) {
			fakeapi.Break(Starts, "refused at %s, it had until %s, and the autoscaler read at %s", w.now, r.until(),
				w.polled)
		}
	case routing.Expired:
		until := r.until()
		if w.now.Before(until) {
			fakeapi.Break(InTime, "expired at %s, it had until %s", w.now, until)
		}
	case routing.Cancelled:
	default:
		fakeapi.Break(Ends, "refused for %q", why)
	}
}

// until returns how long a request may be held.
func (r *request) until() time.Time {
	end := r.came.Add(ttl)
	if d := r.facts.Deadline; !d.IsZero() && d.Before(end) {
		return d
	}
	return end
}

// checkTurn checks that a flow does not continue twice while another one of its priority waits.
func (w *world) checkTurn(r *request) {
	if !w.fair {
		return
	}
	for _, o := range w.oldest() {
		if o.facts.Priority != r.facts.Priority {
			continue
		}
		flow := r.facts.FairnessID
		if o.facts.FairnessID == flow {
			delete(w.turns, o)
			continue
		}
		if w.turns[o] == nil {
			w.turns[o] = map[string]int{}
		}
		if w.turns[o][flow]++; w.turns[o][flow] > 1 {
			fakeapi.Break(Fair, "%s continues again, %s waits", flow, o.facts.FairnessID)
		}
	}
}

// oldest returns the request of each flow that waits longest, in an order that is the same in each run.
func (w *world) oldest() []*request {
	type flow struct {
		priority int
		id       string
	}
	first := map[flow]*request{}
	for _, r := range w.held {
		f := flow{r.facts.Priority, r.facts.FairnessID}
		if o := first[f]; o == nil || r.ticket < o.ticket {
			first[f] = r
		}
	}
	out := make([]*request, 0, len(first))
	for _, r := range first {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *request) int { return int(a.ticket) - int(b.ticket) }) //nolint:gosec // small
	return out
}

// check checks the world after each event.
func (w *world) check() {
	if len(w.held) > heldAtMost {
		fakeapi.Break(Bounded, "%d requests are held", len(w.held))
	}
	if got := w.pool.Held(); got != len(w.held) {
		fakeapi.Break(Ends, "the pool holds %d requests, there are %d", got, len(w.held))
	}
	if len(w.held) == 0 {
		return
	}
	for _, r := range w.held {
		until := r.until()
		if w.now.Sub(until) > 20*time.Millisecond {
			fakeapi.Break(InTime, "held until %s, it had until %s", w.now, until)
		}
	}
	if w.roomSince(w.now) {
		fakeapi.Break(Works, "%d requests are held although a server has reported room", len(w.held))
	}
}

// roomSince reports whether a server recently reported a low load, and was sent no request since. It uses its own
// criterion: no requests at all, and fresh metrics.
func (w *world) roomSince(now time.Time) bool {
	for _, ref := range w.pool.Refs() {
		e := w.pool.Endpoint(ref)
		if w.endpoints[e.Address] == nil || w.endpoints[e.Address].pod != e.Pod {
			continue
		}
		stats, flying := w.pool.Stats(ref)
		if flying == 0 && stats.Waiting == 0 && stats.CacheUse < 0.5 && now.Sub(stats.At) < 60*time.Millisecond {
			return true
		}
	}
	return false
}

// checkEnd checks that nothing is left.
func (w *world) checkEnd() {
	for i, r := range w.requests {
		if r.ends != 1 {
			fakeapi.Break(Ends, "request %d of %d has ended %d times", i, len(w.requests), r.ends)
		}
	}
	for _, ref := range w.pool.Refs() {
		if _, n := w.pool.Stats(ref); n != 0 {
			fakeapi.Break(Accounts, "%s has %d requests", w.pool.Endpoint(ref).Pod, n)
		}
	}
}
