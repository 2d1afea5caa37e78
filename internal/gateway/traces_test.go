package gateway

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"carob/internal/base/tracing"
	"carob/internal/gateway/spans"
)

// otlp is a collector of spans.
type otlp struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.Span
}

// Export implements collector.TraceServiceServer.
func (o *otlp) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse,
	error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		for _, s := range of.GetScopeSpans() {
			o.spans = append(o.spans, s.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// traceTo has the lab's spans sent to a collector; the returned function waits for all and returns them.
func traceTo(t *testing.T, l *lab, rate int32) func() []*tracepb.Span {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o, srv := &otlp{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(srv, o)
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(srv.Stop)
	p, err := tracing.New(t.Context(), &tracing.Config{Endpoint: new(ln.Addr().String()),
		SamplingRatePerMillion: &rate}, "gateway", "node")
	if err != nil {
		t.Fatal(err)
	}
	l.seen.spans = spans.Tracer(p)
	return func() []*tracepb.Span {
		if err := p.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.spans
	}
}

func ofKind(all []*tracepb.Span, kind tracepb.Span_SpanKind) (out []*tracepb.Span) {
	for _, s := range all {
		if s.GetKind() == kind {
			out = append(out, s)
		}
	}
	return out
}

func attribute(s *tracepb.Span, key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// TestTraces: the gateway's span is a child of the client's, the backend's parent is the gateway's attempt.
func TestTraces(t *testing.T) {
	l := newLab(t)
	seen := make(chan http.Header, 2)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }))
	t.Cleanup(srv.Close)
	dead := freePort(t).String() // refuses connections
	l.service("web", "", at(srv.URL, "p1"))
	l.service("two", "", at(dead, "p2"), at(srv.URL, "p1"))
	in := l.ingress("web.example", nil, "/=web", "/two=two")
	l.update()
	all := traceTo(t, l, 0)
	if status, _, _ := l.get("GET", "web.example", "/a?secret=1", nil, "Traceparent", clientTrace,
		"Tracestate", "vendor=1"); status != 200 {
		t.Fatal(status)
	}
	got := <-seen
	for range 2 { // one of two begins at the dead endpoint
		l.get("GET", "web.example", "/two", nil, "Traceparent", clientTrace)
		<-seen
	}
	spans := all()
	servers, clients := ofKind(spans, tracepb.Span_SPAN_KIND_SERVER), ofKind(spans, tracepb.Span_SPAN_KIND_CLIENT)
	if len(servers) != 3 || len(clients) != 4 {
		t.Fatalf("%d spans of requests, %d of attempts, want 3 and 4", len(servers), len(clients))
	}
	for _, s := range servers {
		if hex.EncodeToString(s.GetTraceId()) != clientTrace[3:35] ||
			hex.EncodeToString(s.GetParentSpanId()) != clientTrace[36:52] {
			t.Errorf("%v is not a child of the client's %s", s, clientTrace)
		}
	}
	for _, c := range clients {
		if hex.EncodeToString(c.GetTraceId()) != clientTrace[3:35] {
			t.Errorf("%v is not of the client's trace", c)
		}
	}
	first := servers[0]
	if string(clients[0].GetParentSpanId()) != string(first.GetSpanId()) {
		t.Errorf("the attempt's parent is not the request")
	}
	want := "00-" + clientTrace[3:35] + "-" + hex.EncodeToString(clients[0].GetSpanId()) + "-01"
	if h := got.Values("Traceparent"); len(h) != 1 || h[0] != want || got.Get("Tracestate") != "vendor=1" {
		t.Errorf("the backend got %q %q, want %s", h, got.Get("Tracestate"), want)
	}
	if route := attribute(first, "carob.route"); route != "Ingress/default/"+in.Name {
		t.Errorf("route %q", route)
	}
	if path := attribute(first, "url.path"); path != "/a" {
		t.Errorf("path %q: a query may have secrets", path)
	}
	failed := 0
	for _, c := range clients {
		if c.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR {
			failed++
		}
	}
	if failed != 1 {
		t.Errorf("%d failed attempts, want 1", failed)
	}
}

// TestUnsampledTraces: what is not recorded is passed on as it came; a request without a context gets one, so that all
// behind the gateway decide alike.
func TestUnsampledTraces(t *testing.T) {
	const unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	l := newLab(t)
	seen := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen <- strings.Join(r.Header["Traceparent"], " ")
	}))
	t.Cleanup(srv.Close)
	l.service("web", "", at(srv.URL, "p1"))
	l.ingress("web.example", nil, "/=web")
	l.update()
	all := traceTo(t, l, 0)
	for _, c := range []struct{ sent, want string }{
		{unsampled, unsampled}, {"", "-00"}, {"00-bad", "-00"},
		{"00-00000000000000000000000000000000-b7ad6b7169203331-01", "-00"},
	} {
		l.get("GET", "web.example", "/", nil, "Traceparent", c.sent)
		if got := <-seen; !strings.HasSuffix(got, c.want) || len(got) != 55 || got == c.sent && c.sent != unsampled {
			t.Errorf("%q became %q", c.sent, got)
		}
	}
	if spans := all(); len(spans) != 0 {
		t.Errorf("%d spans, want none", len(spans))
	}
}

// TestSampledTraces: a rate of one million records all; names of spans are never texts of clients.
func TestSampledTraces(t *testing.T) {
	l := newLab(t)
	l.service("none", "")
	l.ingress("web.example", nil, "/=none")
	l.update()
	all := traceTo(t, l, 1_000_000)
	l.get("BREW", "web.example", "/", nil)
	l.get("GET", "web.example", "/", nil)
	spans := all()
	if len(spans) != 2 || spans[0].GetName() != "_OTHER" || spans[1].GetName() != "GET" {
		t.Fatalf("%v", spans)
	}
	if spans[1].GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR {
		t.Errorf("a 503 is %v", spans[1].GetStatus())
	}
}

// TestTracesOfPicks: the span of an inference request has the picked endpoints, or why there are none.
func TestTracesOfPicks(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.serveNow()
	all := traceTo(t, l.lab, 1_000_000)
	l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
	l.get("POST", "x", "/v1/completions", strings.NewReader(`no JSON`))
	servers := ofKind(all(), tracepb.Span_SPAN_KIND_SERVER)
	if len(servers) != 2 || len(servers[0].GetEvents()) != 1 || len(servers[1].GetEvents()) != 1 {
		t.Fatalf("%v", servers)
	}
	picked, refused := servers[0].GetEvents()[0], servers[1].GetEvents()[0]
	if picked.GetName() != "picked" || !strings.Contains(picked.String(), `"m"`) ||
		!strings.Contains(picked.String(), fmt.Sprintf(":%d", l.port)) {
		t.Error(picked)
	}
	if refused.GetName() != "refused" || !strings.Contains(refused.String(), badBody) {
		t.Error(refused)
	}
}
