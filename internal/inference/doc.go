// Package inference drives core/routing: it scrapes the model servers of an InferencePool, holds requests until a
// server has capacity, and chooses the endpoints of each request for the gateway. A gateway makes a Pool for each
// InferencePool that it routes to, and calls its Pick. It must never call the API server, and never sends an inference
// request itself.
//
//	gateway ── Pick ──▶ Pool (one lock) ──▶ routing.Pool.Decide ── Serve ─▶ Pick: endpoints in order
//	                     ▲      │ Hold                                      Try, Failed, FirstByte, End
//	   scrape, one       │      └─ waits for: room (a scrape, the end of a request, new endpoints), its time, the client
//	   goroutine for each endpoint
//
// While no pool exists there is no goroutine. An endpoint is scraped every 50 ms while there are requests (in pools
// with more than 50 endpoints less often: 1,000 scrapes per second in all), and every 5 s when there was none for 5 s.
package inference
