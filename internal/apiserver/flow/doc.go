// Package flow is API priority and fairness: the built-in objects of flowcontrol.apiserver.k8s.io,
// and the dispatcher that queues requests by the objects of that group (package kinds/flowcontrol).
// The API server drives it: the filter is part of the chain for requests from the network. carob's
// own parts never pass it. Nothing here may delay the start: until the built-in objects are read, a
// plain limit on requests in flight applies.
package flow
