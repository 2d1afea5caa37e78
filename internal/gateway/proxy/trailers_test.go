package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"carob/internal/core/httproute"
)

// A trailer cannot replace a header that a filter sets or removes, nor one that the Connection field names. Each
// attempt has trailers of its own, which get their values at the end of its body.
func TestTrailersOfAttempts(t *testing.T) {
	in := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
	in.Header.Set("Connection", "x-listed")
	in.Trailer = http.Header{"X-Set": nil, "X-Added": nil, "X-Removed": nil, "X-Listed": nil, "X-Sum": nil,
		"X-None": nil}
	out := in.Clone(t.Context())
	out.Trailer = requestTrailers(in)
	WithoutTrailers(out, &httproute.HeaderChange{Set: []httproute.HeaderValue{{Name: "X-Set"}},
		Add: []httproute.HeaderValue{{Name: "X-Added"}}, Remove: []string{"X-Removed"}})
	for name := range in.Trailer { // any order: into a map
		in.Trailer[name] = []string{"v", "not\nvalid"}
	}
	first, second := WithTrailers(out, in), WithTrailers(out, in)
	if _, err := io.ReadAll(first.Body); err != nil {
		t.Fatal(err)
	}
	if got := first.Trailer; len(got) != 2 || !slices.Equal(got["X-Sum"], []string{"v"}) {
		t.Errorf("the attempt that has read the body: %v", got)
	}
	if got := second.Trailer; len(got) != 2 || got["X-Sum"] != nil {
		t.Errorf("the other one: %v", got)
	}
	if out.Body = http.NoBody; WithTrailers(out, in).Trailer != nil {
		t.Error("trailers without a body")
	}
}
