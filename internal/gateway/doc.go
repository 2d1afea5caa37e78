// Package gateway is the data plane for Ingresses and the Gateway API: it listens on the ports that core/gatewayplan
// decides, proxies requests, TLS and TCP connections, and datagrams to the endpoints of Services, and writes the
// statuses of the objects. Package app drives it.
//
//	watches ─▶ feed ─▶ loop: gatewayplan.Live ─┬─▶ ports (each: listener, http.Server, an immutable site)
//	             └─ slices ─▶ pools ◀──────────┼── pick ◀── exchange (one request)
//	                                           └─▶ statuses
//
// Ports of UDP have no server, but sessions (udp, flows). For changes of routes, Services, grants, and certificates,
// only the affected parts of the plan are computed again (follow); other changes compute the whole plan (apply).
//
// It must never send a request through the table of Services: it connects to endpoints directly, so that it can assign
// each request to a pod. A Gateway is a node.Traffic: a pod that is being deleted gets no new request, and counts as
// routed until its requests have ended.
//
// An endpoint picker of a backend (inference routing) is a Picker: facts of a request → endpoints in order.
package gateway
