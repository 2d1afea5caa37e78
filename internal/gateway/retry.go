package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// RoundTrip sends the request to an endpoint, and to the next ones if the rule has a retry for its failure.
func (x *exchange) RoundTrip(out *http.Request) (*http.Response, error) {
	for n := 0; ; n++ {
		res, err := x.send(out)
		status := 0
		if err == nil {
			status = res.StatusCode
		}
		wait, again := x.met.Rule.Retry.Again(n, status)
		if !again || errors.Is(err, errNoEndpoints) || out.Context().Err() != nil || x.body.Spent() {
			return res, err
		}
		if err == nil {
			_ = res.Body.Close()
		}
		select {
		case <-out.Context().Done():
			return nil, context.Cause(out.Context())
		case <-time.After(wait):
		}
		if err := x.choose(out.Context()); err != nil {
			return nil, err
		}
		next := *out // the attempt before may still read the other one
		if out = &next; x.body != nil {
			out.Body = x.body.Attempt()
		}
	}
}
