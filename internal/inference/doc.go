// Package inference drives core/routing: it scrapes the model servers of an InferencePool, holds requests until there
// is room, and tells the gateway where each request goes. A gateway makes a Pool for each InferencePool that it routes
// to, and asks it with Pick. It must never talk to the API server, and never sends an inference request itself.
//
//	gateway ── Pick ──▶ Pool (one lock) ──▶ routing.Pool.Decide ── Serve ─▶ Pick: endpoints in order
//	                     ▲      │ Hold                                      Try, Failed, FirstByte, End
//	   scrape, one       │      └─ waits for: room (a scrape, the end of a request, new endpoints), its time, the client
//	   goroutine for each endpoint
//
// While no pool exists there is no goroutine. An endpoint is scraped every 50 ms while requests flow (pools with more
// than 50 endpoints: less often, 1,000 scrapes per second), and every 5 s when none came for 5 s.
package inference
