package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
)

type earlyKey struct{}

// EarlyOf returns what takes the informational responses to a request with this context; nil: they are dropped.
func EarlyOf(ctx context.Context) func(code int, h textproto.MIMEHeader) error {
	if e, ok := ctx.Value(earlyKey{}).(*hints); ok {
		return e.Pass
	}
	return nil
}

// WithoutEarly returns a context for a copy of a request: the client gets no informational responses to it.
func WithoutEarly(ctx context.Context) context.Context {
	return context.WithValue(ctx, earlyKey{}, nil)
}

// mostEarly is how many informational responses may precede the final one.
const mostEarly = 16

var errManyEarly = errors.New("the backend sent too many informational responses")

// Early is a transport of net/http that passes informational responses on. It limits them, which the transport does not
// do for what it passes on.
type Early struct{ *http.Transport }

// RoundTrip implements http.RoundTripper.
func (t Early) RoundTrip(r *http.Request) (*http.Response, error) {
	if pass := EarlyOf(r.Context()); pass != nil {
		n := 0 // the transport calls it from one goroutine
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				if n++; n > mostEarly {
					return errManyEarly
				}
				return pass(code, h)
			}}))
	}
	return t.Transport.RoundTrip(r)
}

// hints forwards informational responses until the final one.
type hints struct {
	mu   sync.Mutex
	w    http.ResponseWriter
	over bool
}

// Pass sends an informational response to the client.
func (e *hints) Pass(code int, h textproto.MIMEHeader) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return nil
	}
	to := e.w.Header()
	removeHopByHop(http.Header(h))
	copyHeader(to, http.Header(h))
	to.Del("Content-Length") // it has no body (RFC 9110, 8.6)
	e.w.WriteHeader(code)
	clear(to)
	return nil
}

func (e *hints) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
}
