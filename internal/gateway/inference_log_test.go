package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/routing"
	"carob/internal/gateway/accesslog"
)

// A line of the access log has the requested model, the model in the server's request, the server, the tokens, or why
// the request was refused; lines of other requests lack these fields.
func TestAccessLogOfInference(t *testing.T) {
	l := newInferenceLab(t)
	path := filepath.Join(t.TempDir(), "access.log")
	l.seen.log = newAccessLog(path, l.seen.figures)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.seen.log.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	l.serveNow()
	l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"none\u0000"}`))
	l.server(1, answering)
	l.world.Inference.Models = []*inferenceapi.Model{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec: inferenceapi.ModelSpec{ModelName: "asked", TargetModels: []inferenceapi.TargetModel{{Name: "target"}},
			PoolRef: inferenceapi.PoolRef{Group: inferenceapi.OldGroup, Kind: "InferencePool", Name: "llm"}}}}
	l.serveNow()
	for _, body := range []string{`{"model":"asked"}`, `{"model":"other"}`, `no JSON`} {
		l.get("POST", "x", "/v1/completions", strings.NewReader(body))
	}
	all := logLines(t, path, 4)
	for i, want := range []accesslog.Inferred{
		{Model: "none\x00", Reason: "rejected-no-endpoints"},
		{Model: "asked", Target: "target", InputTokens: 3, OutputTokens: 4},
		{Model: "other", InputTokens: 3, OutputTokens: 4},
		{Reason: badBody},
	} {
		if got := all[i]; got.Inferred != want || (got.Endpoint == "") != (want.Reason != "") {
			t.Errorf("line %d: %+v", i, got)
		}
	}
}

// The API keys of docs/inference-pools.md: the client's key decides whether the route matches, and the servers get
// theirs.
func TestKeysOfInference(t *testing.T) {
	l := newInferenceLab(t)
	got := make(chan http.Header, 1)
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			got <- r.Header
		}
		answering(w, r)
	})
	rule := &l.world.HTTPRoutes[0].Spec.Rules[0]
	rule.Matches = []gatewayv1.HTTPRouteMatch{{Headers: []gatewayv1.HTTPHeaderMatch{
		{Name: "x-api-key", Value: "client"}}}}
	rule.Filters = []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterRequestHeaderModifier,
		RequestHeaderModifier: &gatewayv1.HTTPHeaderFilter{Remove: []string{"x-api-key"},
			Set: []gatewayv1.HTTPHeader{{Name: "Authorization", Value: "Bearer servers"}}}}}
	l.serveNow()
	for _, key := range []string{"", "Client", "client2"} {
		status, text, _ := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`), "X-Api-Key", key)
		want(t, "the key "+key, status, text, 404)
	}
	status, text, _ := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`), "X-Api-Key", "client",
		"Authorization", "Bearer stolen")
	want(t, "the right key", status, text, 200)
	if h := <-got; h.Get("Authorization") != "Bearer servers" || h.Get("X-Api-Key") != "" {
		t.Errorf("the server got %v", h)
	}
}

// A client that leaves as soon as it has the whole answer was answered.
func TestOutcome(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	q := &inferring{exchange: &exchange{in: httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)}}
	if got := q.outcome(); got != routing.Failed {
		t.Errorf("without an answer: %v", got)
	}
	leave()
	if got := q.outcome(); got != routing.Aborted {
		t.Errorf("the client has left: %v", got)
	}
	q.complete = true
	if got := q.outcome(); got != routing.Answered {
		t.Errorf("the client has left with the whole answer: %v", got)
	}
}
