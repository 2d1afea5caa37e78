package proxy

import (
	"errors"
	"io"
	"net/http"
	"slices"

	"golang.org/x/net/http/httpguts"

	"carob/internal/core/httproute"
)

// requestTrailers are the names of the trailers that a client has announced and that a backend may get; nil: none.
// Fields that frame, route, or authenticate a request are not among them (RFC 9110, 6.5.1), nor those that a header may
// not have: a backend may treat trailers as a part of the header.
func requestTrailers(in *http.Request) (out http.Header) {
	for name := range in.Trailer { // any order: into a map
		if !httpguts.ValidTrailerHeader(name) || hopByHop(name) || claims(name) || name == "Cookie" {
			continue
		}
		if out == nil {
			out = http.Header{}
		}
		out[name] = nil
	}
	removeListed(out, in.Header["Connection"])
	if len(out) == 0 {
		return nil
	}
	return out
}

// WithoutTrailers removes the trailers that have the name of a header that a filter sets or removes: otherwise a client
// could still send it.
func WithoutTrailers(out *http.Request, c *httproute.HeaderChange) {
	for _, all := range [][]httproute.HeaderValue{c.Set, c.Add} {
		for _, v := range all {
			delete(out.Trailer, v.Name)
		}
	}
	for _, name := range c.Remove {
		delete(out.Trailer, name)
	}
}

// WithTrailers is the request for one attempt, with trailers of its own, whose values come from the client's request at
// the end of the body. An attempt before may still read the body.
func WithTrailers(out, in *http.Request) *http.Request {
	if out.Trailer == nil {
		return out
	}
	one := *out
	if one.Trailer = nil; len(out.Trailer) == 0 || out.Body == nil || out.Body == http.NoBody {
		return &one
	}
	one.Trailer = make(http.Header, len(out.Trailer))
	for name := range out.Trailer { // any order: into a map
		one.Trailer[name] = nil
	}
	one.Body = &trailed{out.Body, in, one.Trailer}
	if again := out.GetBody; again != nil {
		one.GetBody = func() (io.ReadCloser, error) {
			b, err := again()
			if err != nil {
				return nil, err
			}
			return &trailed{b, in, one.Trailer}, nil
		}
	}
	return &one
}

// trailed is the body of a request with trailers.
type trailed struct {
	io.ReadCloser
	from *http.Request // its trailers are known at the end of its body
	to   http.Header
}

// Read implements io.Reader.
func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		for name := range t.to { // any order: each by itself
			t.to[name] = slices.DeleteFunc(slices.Clone(t.from.Trailer[name]), func(v string) bool {
				return !httpguts.ValidHeaderFieldValue(v)
			})
		}
	}
	return n, err
}
