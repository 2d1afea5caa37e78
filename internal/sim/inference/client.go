package inference

import (
	"fmt"
	"strings"
	"time"

	"carob/internal/core/routing"
	"carob/internal/sim/fakeapi"
)

// arrivals schedules requests until a time: at random times, and sometimes in bursts.
func (w *world) arrivals(end time.Time) {
	gap := time.Duration(1+w.IntN(60)) * time.Millisecond
	if w.one(40) {
		for range w.IntN(80) {
			w.arrive()
		}
	}
	if w.one(30) {
		gap += time.Duration(w.IntN(5000)) * time.Millisecond
	}
	w.after(gap, func() {
		if w.now.After(end) {
			return
		}
		w.arrive()
		w.arrivals(end)
	})
}

// arrive is a request of a random tenant.
func (w *world) arrive() {
	tenant := w.IntN(6)
	text := strings.Repeat(fmt.Sprintf("the long beginning of tenant %d ", tenant), 20+10*tenant) +
		strings.Repeat(fmt.Sprint("question ", w.IntN(1000)), w.IntN(200))
	r := &request{tokens: len(text) / 4, answer: 1 + w.IntN(100), came: w.now}
	r.facts = routing.Request{Model: "base", Bytes: len(text), Priority: w.IntN(3) - 1, Random: w.Uint64(),
		FairnessID: fmt.Sprint("t", tenant), Received: w.now}
	if w.one(3) {
		r.facts.Target = fmt.Sprint("adapter", w.IntN(4))
	}
	r.facts.Prefix = w.pool.Hasher().Hash(nil, r.facts.Model, r.facts.Target, []byte(text))
	if r.text = tokensOf(text); w.precise && !w.one(10) { // sometimes the tokens are not known
		r.facts.Blocks = w.pool.TokenHasher().Hash(model(&r.facts), "", r.text)
	}
	if w.one(8) {
		r.facts.Deadline = w.now.Add(time.Duration(w.IntN(9000)) * time.Millisecond)
	}
	w.send(r)
	if w.one(10) { // the client cancels the request
		w.after(time.Duration(w.IntN(4000))*time.Millisecond, func() { w.giveUp(r) })
	}
}

// model returns the model name in the request to a server.
func model(r *routing.Request) string {
	if r.Target != "" {
		return r.Target
	}
	return r.Model
}

// send calls the pool for a new request.
func (w *world) send(r *request) {
	w.requests = append(w.requests, r)
	request := r.facts
	if w.sabotage.Request != nil {
		w.sabotage.Request(&request)
	}
	d := w.decide(&request)
	if w.robin >= 0 {
		w.turn(&d)
	}
	switch d.Verdict {
	case routing.Serve:
		w.serve(r, d)
	case routing.Refuse:
		w.refuse(r, d.Reason)
	case routing.Hold:
		r.ticket = w.pool.Enqueue(&request, w.now)
		w.held[r.ticket] = r
	}
}

// decide calls the pool twice: the result must be the same.
func (w *world) decide(r *routing.Request) routing.Decision {
	d, again := w.pool.Decide(r, w.now), w.pool.Decide(r, w.now)
	if w.sabotage.Decision != nil {
		w.sabotage.Decision(true, &d)
		w.sabotage.Decision(false, &again)
	}
	if d != again {
		fakeapi.Break(Same, "%+v, then %+v", d, again)
	}
	return d
}

// drain lets held requests continue, like the driver.
func (w *world) drain() {
	for {
		ticket, d := w.pool.Next(w.now)
		if ticket == 0 {
			return
		}
		r := w.held[ticket]
		if r == nil {
			fakeapi.Break(Ends, "ticket %d continues, and is not held", ticket)
		}
		w.checkTurn(r)
		delete(w.held, ticket)
		switch {
		case w.sabotage.Lose && w.one(10):
		case d.Verdict == routing.Serve:
			w.serve(r, d)
		default:
			w.refuse(r, d.Reason)
		}
	}
}

// expire refuses requests that waited too long.
func (w *world) expire() {
	if w.sabotage.Late {
		return
	}
	for {
		ticket, why, _ := w.pool.Expire(w.now)
		if ticket == 0 {
			return
		}
		r := w.held[ticket]
		if r == nil {
			fakeapi.Break(Ends, "ticket %d expires, and is not held", ticket)
		}
		delete(w.held, ticket)
		w.refuse(r, why)
	}
}

// serve sends a request to the first server of a decision.
func (w *world) serve(r *request, d routing.Decision) {
	w.checkServe(r)
	r.decision, r.at = d, 0
	w.post(r, d.Chosen[0])
}

// post delivers a request to a server.
func (w *world) post(r *request, ref routing.Ref) {
	e := w.pool.Endpoint(ref)
	if e == nil {
		fakeapi.Break(Members, "a server that is not in the pool was chosen")
	}
	s := w.endpoints[e.Address]
	if s == nil || s.pod != e.Pod {
		fakeapi.Break(Members, "%s was chosen, which is draining, not ready, or gone", e.Pod)
	}
	r.flight = w.pool.Sent(ref, &r.facts, w.now)
	if s.ended { // not reported yet: the connection is refused
		w.after(time.Millisecond, func() { w.next(r, false) })
		return
	}
	r.servers++
	j := &job{r: r, at: s, sent: w.now}
	r.job = j
	s.waiting = append(s.waiting, j)
	w.admit(s)
}

// failed handles the death of a server with a request.
func (w *world) failed(j *job) {
	r := j.r
	if r.ends > 0 {
		return
	}
	if !j.first.IsZero() && !w.sabotage.Retry {
		w.pool.Ended(&r.flight, routing.Failed, 0, w.now)
		w.end(r)
		w.drain()
		return
	}
	w.next(r, true)
}

// next sends a request to the next server of the decision, like inference.Pick.Failed.
func (w *world) next(r *request, sent bool) {
	if r.ends > 0 {
		return
	}
	w.pool.Ended(&r.flight, routing.Failed, 0, w.now)
	if sent && r.again && !w.sabotage.Retry {
		w.end(r)
		w.drain()
		return
	}
	r.again = r.again || sent
	for r.at+1 < r.decision.N {
		r.at++
		ref := r.decision.Chosen[r.at]
		if e := w.pool.Endpoint(ref); e != nil && e.Ready && !e.Draining {
			if r.job != nil && !r.job.first.IsZero() {
				fakeapi.Break(Once, "sent again after the first token")
			}
			w.post(r, ref)
			if r.servers > 2 {
				fakeapi.Break(Once, "%d servers have received a request", r.servers)
			}
			w.drain()
			return
		}
	}
	w.end(r)
	w.drain()
}

func (w *world) giveUp(r *request) {
	if r.ends > 0 {
		return
	}
	if w.held[r.ticket] == r {
		if !w.pool.Cancel(r.ticket) {
			fakeapi.Break(Ends, "a held request cannot be cancelled")
		}
		delete(w.held, r.ticket)
		w.refuse(r, routing.Cancelled)
		return
	}
	if r.job != nil && !r.job.over {
		w.done(r.job, routing.Aborted)
	}
}

// began handles the first token of an answer.
func (w *world) began(j *job) {
	w.pool.FirstToken(&j.r.flight, w.now)
	w.ttft = append(w.ttft, w.now.Sub(j.r.came))
}

// ended handles the end of an answer.
func (w *world) ended(j *job, how routing.Outcome) {
	if !w.sabotage.Forget || !w.one(20) {
		w.pool.Ended(&j.r.flight, how, j.r.answer, w.now)
	}
	w.answered++
	w.end(j.r)
	if !w.sabotage.Idle {
		w.drain()
	}
}

func (w *world) refuse(r *request, why routing.Reason) {
	w.refused++
	w.checkRefusal(r, why)
	w.end(r)
}

func (w *world) end(r *request) {
	if r.ends++; r.ends > 1 {
		fakeapi.Break(Ends, "a request ends twice")
	}
}
