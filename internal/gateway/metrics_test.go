package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"carob/internal/base/testwait"
	"carob/internal/core/httproute"
	"carob/internal/gateway/accesslog"
)

const clientTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// figure reads one counter.
func figure(t *testing.T, l *lab, name string, labels map[string]string) float64 {
	t.Helper()
	for _, m := range series(t, l, name) {
		fits := true
		for _, p := range m.GetLabel() {
			if want, selected := labels[p.GetName()]; selected && want != p.GetValue() {
				fits = false
			}
		}
		if fits {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return 0
}

func series(t *testing.T, l *lab, name string) []*dto.Metric {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(l.seen.figures); err != nil {
		t.Fatal(err)
	}
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}
	return nil
}

func TestMetrics(t *testing.T) {
	l := newLab(t)
	l.service("web", "", at(echo(t, "web").URL, "p1"))
	l.service("none", "")
	in := l.ingress("web.example", nil, "/=web", "/none=none")
	l.update()
	status, text, _ := l.get("POST", "web.example", "/", strings.NewReader("12345"), "Traceparent", clientTrace)
	want(t, "a request", status, text, 200, "body=5")
	l.get("GET", "web.example", "/none", nil)
	for range 20 { // hosts and paths of strangers are not labels
		l.get("GET", "no.example", "/x", nil)
	}
	web := map[string]string{"kind": "Ingress", "namespace": "default", "name": in.Name, "backend": "default/web:80",
		"code": "2xx"}
	if n := figure(t, l, "gateway_requests_total", web); n != 1 {
		t.Errorf("requests of the route: %v", n)
	}
	if n := figure(t, l, "gateway_requests_total", map[string]string{"kind": "Ingress", "code": "5xx", "backend": ""}); n != 1 {
		t.Errorf("requests without endpoints: %v", n)
	}
	if n := figure(t, l, "gateway_requests_total", map[string]string{"kind": "", "code": "4xx"}); n != 20 {
		t.Errorf("requests without a route: %v", n)
	}
	if n := figure(t, l, "gateway_body_bytes_total", map[string]string{"kind": "Ingress", "direction": "in"}); n != 5 {
		t.Errorf("bytes in: %v", n)
	}
	if n := figure(t, l, "gateway_body_bytes_total", map[string]string{"kind": "Ingress",
		"direction": "out"}); n < float64(len(text)) {
		t.Errorf("bytes out: %v, want at least %d", n, len(text))
	}
	if n := figure(t, l, "gateway_requests_in_flight", nil); n != 0 {
		t.Errorf("in flight: %v", n)
	}
	exemplar := ""
	for _, m := range series(t, l, "gateway_request_duration_seconds") {
		for _, b := range m.GetHistogram().GetBucket() {
			for _, p := range b.GetExemplar().GetLabel() {
				exemplar = p.GetValue()
			}
		}
	}
	if exemplar != clientTrace[3:35] {
		t.Errorf("exemplar %q, want the trace", exemplar)
	}
	before := testutil.CollectAndCount(l.seen.figures.requests)
	l.world.Ingresses = nil
	l.update()
	if after := testutil.CollectAndCount(l.seen.figures.requests); after >= before {
		t.Errorf("%d series after the route has gone, %d before", after, before)
	}
}

// A request that ends after its route was removed has no series begin again: nothing would remove them.
func TestMetricsOfRequestsThatOutliveTheirRoute(t *testing.T) {
	l := newLab(t)
	came, answer := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(came)
		<-answer
	}))
	t.Cleanup(s.Close)
	l.service("web", "", at(s.URL, "p1"))
	l.ingress("web.example", nil, "/=web")
	l.update()
	before := testutil.CollectAndCount(l.seen.figures)
	status := make(chan int, 1)
	go func() {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.http, nil)
		r.Host = "web.example"
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			status <- 0
			return
		}
		_ = res.Body.Close()
		status <- res.StatusCode
	}()
	<-came
	l.world.Ingresses = nil
	l.update()
	close(answer)
	if got := <-status; got != http.StatusOK {
		t.Errorf("status %d", got)
	}
	l.closed.Wait() // the port has no request any more
	if after := testutil.CollectAndCount(l.seen.figures); after != before {
		t.Errorf("%d series after the route has gone, %d before it had a request", after, before)
	}
}

// However many routes there are, the number of series is bounded, and nothing is lost.
func TestMetricsAreBounded(t *testing.T) {
	l := newLab(t)
	f := l.seen.figures
	for i := range 3 * mostSeries {
		key := routeKey{"HTTPRoute", "default", fmt.Sprint(i)}
		f.route(key).out.Add(1)
		f.pair(f.route(key), pairKey{key, httproute.Ref{Namespace: "default", Name: fmt.Sprint(i), Port: 80}})[2].Inc()
	}
	if n := testutil.CollectAndCount(f.requests); n > (mostSeries+1)*codes {
		t.Errorf("%d series", n)
	}
	if n := figure(t, l, "gateway_requests_total", map[string]string{"kind": "other", "code": "2xx"}); n != 2*mostSeries {
		t.Errorf("others: %v, want %d", n, 2*mostSeries)
	}
}

// The trace context of a client goes on to the backend.
func TestTraceContextIsPassedOn(t *testing.T) {
	got := make(chan http.Header, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	t.Cleanup(s.Close)
	l := newLab(t)
	l.service("web", "", at(s.URL, "p1"))
	l.ingress("web.example", nil, "/=web")
	l.update()
	l.get("GET", "web.example", "/", nil, "Traceparent", clientTrace, "Tracestate", "a=b", "Baggage", "c=d")
	h := <-got
	if h.Get("Traceparent") != clientTrace || h.Get("Tracestate") != "a=b" || h.Get("Baggage") != "c=d" {
		t.Errorf("the backend got %v", h)
	}
}

func logLines(t *testing.T, path string, n int) []accesslog.Line {
	t.Helper()
	var out []accesslog.Line
	testwait.For(t, "lines of the access log", func() bool {
		text, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		out = nil
		for line := range strings.Lines(string(text)) {
			var l accesslog.Line
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatalf("%q is not a line: %v", line, err)
			}
			out = append(out, l)
		}
		return len(out) >= n
	})
	return out
}

// logsTo writes the access log of a gateway to a file.
func logsTo(t *testing.T, l *lab, path string) {
	t.Helper()
	l.seen.log = newAccessLog(path, l.seen.figures)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.seen.log.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func TestAccessLog(t *testing.T) {
	l := newLab(t)
	path := filepath.Join(t.TempDir(), "access.log")
	logsTo(t, l, path)
	l.service("web", "", at(echo(t, "web").URL, "p1"))
	in := l.ingress("web.example", nil, "/=web")
	l.update()
	l.get("POST", "web.example", "/a%22b%0a?secret=1", strings.NewReader("123"), "User-Agent",
		"x\"}\u2028<\xff"+strings.Repeat("y", 4000), "Traceparent", clientTrace)
	line := logLines(t, path, 1)[0]
	if line.Status != 200 || line.Path != "/a%22b%0a" || line.Host != "web.example" || line.BytesIn != 3 ||
		line.Route != "Ingress/default/"+in.Name || line.Backend != "default/web:80" || line.Endpoint == "" ||
		line.Trace != clientTrace[3:35] || len(line.UserAgent) > accesslog.MostText+3 || line.Attempts != 1 ||
		!strings.HasPrefix(line.UserAgent, "x\"}\u2028<\uFFFD") {
		t.Errorf("line: %+v", line)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), "secret") {
		t.Errorf("the query is in %q (%v)", text, err)
	}
}

// A log whose file does not take lines costs lines, which are counted, and never a request.
func TestSlowAccessLog(t *testing.T) {
	l := newLab(t)
	l.seen.log = accesslog.New("/nowhere", 2, l.seen.figures.lost.Inc) // no writer
	l.service("web", "", at(echo(t, "web").URL, "p1"))
	l.ingress("web.example", nil, "/=web")
	l.update()
	for range 5 {
		status, text, _ := l.get("GET", "web.example", "/", nil)
		want(t, "with a full log", status, text, 200)
	}
	if n := testutil.ToFloat64(l.seen.figures.lost); n != 3 {
		t.Errorf("%v lines are lost, want 3", n)
	}
}
