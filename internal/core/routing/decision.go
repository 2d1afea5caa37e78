package routing

import "time"

// Verdict is the decision about a request.
type Verdict uint8

// The verdicts.
const (
	Serve  Verdict = iota // send it to Chosen, in order
	Hold                  // keep it in the queue until Flow lets it continue
	Refuse                // answer with Status and Reason
)

// String implements fmt.Stringer.
func (v Verdict) String() string {
	switch v {
	case Serve:
		return "serve"
	case Hold:
		return "hold"
	case Refuse:
		return "refuse"
	}
	return "unknown"
}

// Reason is the reason why a request was refused: the value of the header
// x-llm-d-request-dropped-reason (2.1).
type Reason string

// The reasons, as upstream's router names them.
const (
	Saturated    Reason = "rejected-saturated" // the pool, or the queue is full
	NoEndpoints  Reason = "rejected-no-endpoints"
	Expired      Reason = "rejected-ttl-expired"
	Cancelled    Reason = "rejected-context-cancelled"
	ShuttingDown Reason = "rejected-shutting-down"
)

// ReasonHeader of a response is the reason why a request was dropped.
const ReasonHeader = "X-Llm-D-Request-Dropped-Reason"

// Status is the HTTP status of the answer to a refused request.
func (r Reason) Status() int {
	switch r {
	case Saturated, Expired:
		return 429
	case NoEndpoints, Cancelled, ShuttingDown:
		return 503
	}
	return 503
}

// MostChosen is the maximum number of endpoints in a decision: the one that gets the request,
// and those that get it if the previous ones cannot be reached or fail before the first byte of
// their response.
const MostChosen = 3

// Decision is the decision about a request, with its endpoints. It is a value: making one allocates
// nothing.
type Decision struct {
	Verdict Verdict
	// Chosen are the endpoints in order, N of them (Serve).
	Chosen [MostChosen]Ref
	N      int
	// Prefill is the endpoint that computes the prompt first, if HasPrefill (disaggregated serving).
	Prefill    Ref
	HasPrefill bool
	// Matched is how many blocks of the prompt the first endpoint has in its cache, according to the
	// index.
	Matched int
	// Score of the first endpoint: the sum of weighted scores.
	Score float64
	// Reason of Refuse.
	Reason Reason
}

// refuse is a decision.
func refuse(why Reason) Decision { return Decision{Verdict: Refuse, Reason: why} }

// Outcome is the result of a request at an endpoint.
type Outcome uint8

// The outcomes.
const (
	Answered Outcome = iota // completely
	Aborted                 // by the client
	Failed                  // by the server: no connection, or it broke
)

// Flight is a request in flight at an endpoint. Sent returns it; it is passed to FirstToken and
// Ended.
type Flight struct {
	ref      Ref
	tokens   int64 // of the prompt
	uncached int64 // of the prompt, not in the cache according to the index
	ahead    int64 // uncached tokens of other requests that were sent before
	busy     int   // requests that were sent before
	sent     time.Time
	first    time.Time
	over     bool
}
