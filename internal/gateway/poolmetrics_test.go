package gateway

import (
	"strings"
	"testing"

	"carob/internal/base/externalmetrics"
	"carob/internal/base/testwait"
	"carob/internal/core/routing"
)

// A request for a pool without a server waits while an autoscaler reads how many wait, and goes to the first server;
// the figures are offered while there is a pool.
func TestFirstServer(t *testing.T) {
	l := newInferenceLab(t)
	var source externalmetrics.Source
	l.cfg.Measured = func(s externalmetrics.Source) { source = s }
	l.serveNow()
	if source == nil {
		t.Fatal("the figures are not offered")
	}
	read := func(metric, name string) float64 {
		t.Helper()
		all, ok := source.Values("default", metric, func(l map[string]string) bool { return l["name"] == name })
		if !ok || len(all) > 1 || len(all) == 1 && all[0].Labels["namespace"] != "default" {
			t.Fatalf("%s: %+v %t", metric, all, ok)
		}
		if len(all) == 0 {
			return -1
		}
		return all[0].Value
	}
	// Another pool's autoscaler, and metrics other than the number of held requests, do not make requests wait.
	for _, metric := range []string{"inference_pool_ready_pods", "inference_pool_average_queue_size"} {
		read(metric, "llm")
	}
	if got := read("inference_pool_requests", "another"); got >= 0 {
		t.Errorf("%g of a pool that is not there", got)
	}
	status, text, h := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
	want(t, "no autoscaler", status, text, 503)
	if h.Get(routing.ReasonHeader) != "rejected-no-endpoints" {
		t.Error(h)
	}
	if got := read("inference_pool_requests", "llm"); got != 0 {
		t.Errorf("%g requests", got)
	}
	type result struct {
		status int
		text   string
	}
	const n = 3
	done := make(chan result, n)
	for range n {
		go func() {
			status, text, _ := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
			done <- result{status, text}
		}()
	}
	testwait.For(t, "the autoscaler sees what is held", func() bool {
		return read("inference_pool_requests", "llm") == n
	})
	if got := read("inference_pool_queue_size", "llm"); got != n {
		t.Errorf("%g wait", got)
	}
	l.server(1, answering)
	l.serveNow()
	for range n {
		got := <-done
		want(t, "held", got.status, got.text, 200, `"got"`)
	}
	if got := read("inference_pool_ready_pods", "llm"); got != 1 {
		t.Errorf("%g servers", got)
	}
	l.world.HTTPRoutes = nil
	l.serveNow()
	if source != nil {
		t.Error("the figures are offered without a pool")
	}
}
