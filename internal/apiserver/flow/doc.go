// Package flow is API priority and fairness: the built-in objects of flowcontrol.apiserver.k8s.io and the
// dispatcher that queues requests by the objects of that group (package kinds/flowcontrol). The API server drives it:
// the
// filter goes into the chain of requests from the network. carob's own parts never pass it. Nothing here may hold back
// the start: until the built-in objects are read, a plain limit on requests in flight holds.
package flow
