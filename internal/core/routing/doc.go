// Package routing decides which model server of a pool gets an inference request: (facts of the request, state of the
// endpoints, now) → endpoints in order, hold the request, or refuse it with a reason. It is configured like upstream's
// endpoint picker (EndpointPickerConfig). docs/spec/inference-gateway.md 2.3 and 2.4 are its clauses.
//
//	Config ──────────────▶ Pool ◀── SetEndpoints (watch), Observe (scraped metrics)
//	Request ── Decide ──────▶ │ ──▶ Decision: Serve | Hold | Refuse
//	           Sent, FirstToken, Ended
//
// A Pool is the state of one InferencePool. It has no lock, clock, or source of randomness: its owner
// (internal/inference) serializes the calls and passes the time and a random number with each request.
//
// # How a gateway uses it
//
// internal/inference.Pool owns a routing.Pool. A gateway fills a Request (one pass over the body), calls Pick, which
// waits while the request is held, sends the request to the first endpoint of the pick, calls Sent for each endpoint
// that it tries, FirstToken with the first byte of the answer, and Ended exactly once for each Sent.
package routing
