package apiserver

import (
	"context"
	"net/http"
	"time"

	epmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
)

// filter is a handler around another one. With a name, the time of requests in it is measured
// (apiserver_request_filter_duration_seconds).
type filter struct {
	name string
	wrap func(next http.Handler) http.Handler
}

// inOrder calls the filters one after the other, and then last. Usually each filter calls the next
// and stays on the stack as long as the request, with its version of the request: a watch kept 2.3
// KB of stack that way, enough to double its size. A filter can be used here if it does nothing
// after next has returned, or nothing that could not be done before.
func inOrder(last http.Handler, filters ...filter) http.Handler {
	steps := make([]filterStep, len(filters))
	for i, f := range filters {
		steps[i] = filterStep{f.name, f.wrap(http.HandlerFunc(pass))}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if w, r = passThrough(steps, w, r); r != nil {
			last.ServeHTTP(w, r)
		}
	})
}

// filterStep is a filter that returns the request that it passes on.
type filterStep struct {
	name string
	http.Handler
}

// passed is what the current filter of a request has called next with.
type passed struct {
	w http.ResponseWriter
	r *http.Request
}

type passedKey struct{}

// passThrough returns the final request, or none if one of the filters has answered.
func passThrough(steps []filterStep, w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *http.Request) {
	p, ok := r.Context().Value(passedKey{}).(*passed) // of earlier filters, which have returned
	if !ok {
		p = new(passed)
		r = r.WithContext(context.WithValue(r.Context(), passedKey{}, p))
	}
	for _, step := range steps {
		*p = passed{}
		var start time.Time
		if step.name != "" {
			start = time.Now()
		}
		step.ServeHTTP(w, r)
		if p.r == nil {
			return nil, nil
		}
		if step.name != "" {
			epmetrics.RecordFilterLatency(r.Context(), step.name, time.Since(start))
		}
		w, r = p.w, p.r
	}
	*p = passed{} // no request is kept longer than needed
	return w, r
}

func pass(w http.ResponseWriter, r *http.Request) {
	*r.Context().Value(passedKey{}).(*passed) = passed{w, r}
}
