package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/gateway/accesslog"
	"carob/internal/gateway/proxy"
	"carob/internal/gateway/spans"
)

// mostSeries limits the routes, and pairs of route and backend, with series of their own: hosts and paths of requests
// are not labels, but many users write routes. The rest is counted as the route "other".
const mostSeries = 2000

// codes are the values of the label code: the class of the status, or "none" if there was no response.
const codes = 6

// figures are the gateway's metrics. The Gateway API defines none; these begin with gateway_.
type figures struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	retries  *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	lost     prometheus.Counter
	refused  prometheus.Counter
	open     prometheus.GaugeFunc
	now      prometheus.GaugeFunc
	streams  *prometheus.CounterVec
	dropped  *prometheus.CounterVec
	sessions prometheus.GaugeFunc

	inFlight atomic.Int64

	mu     sync.RWMutex
	routes map[routeKey]*routeFigures
	pairs  map[pairKey]*pairFigures
}

type routeKey struct{ kind, namespace, name string }

type pairKey struct {
	route   routeKey
	backend httproute.Ref
}

// routeFigures are the metrics of one route.
type routeFigures struct {
	seconds          prometheus.ExemplarObserver
	retries, in, out prometheus.Counter
	streams          prometheus.Counter
	gone             bool // the route was removed, and its series; guarded by figures.mu
}

// pairFigures count the responses of one backend for one route, by the class of the status.
type pairFigures [codes]prometheus.Counter

func newFigures(open, sessions *atomic.Int64) *figures {
	route := []string{"kind", "namespace", "name"}
	with := func(more ...string) []string { return append(more, route...) }
	counter := func(name, help string, labels []string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gateway", Name: name, Help: help}, labels)
	}
	f := &figures{routes: map[routeKey]*routeFigures{}, pairs: map[pairKey]*pairFigures{},
		requests: counter("requests_total", "Requests that have ended, by route, backend, and class of the status "+
			"(none: the client left before an answer).", with("backend", "code")),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "gateway",
			Name: "request_duration_seconds", Help: "Time from the header of a request to the end of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}}, route),
		retries: counter("retries_total", "Attempts after the first: at other endpoints, or by a retry.", route),
		bytes: counter("body_bytes_total", "Bytes of bodies and streams, from clients (in) and to them "+
			"(out).", with("direction")),
		streams: counter("stream_connections_total", "TLS and TCP connections, and sessions of UDP, that were "+
			"passed to backends.", route),
		dropped: counter("udp_datagrams_dropped_total", "Datagrams of clients that no endpoint got, by the reason.",
			[]string{"reason"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "gateway", Name: "access_log_lines_lost_total",
			Help: "Lines of the access log that were dropped because its file is too slow."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "gateway", Name: "connections_refused_total",
			Help: "Connections that were closed because too many are open."}),
	}
	f.open = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "gateway", Name: "connections",
		Help: "Open connections of clients."}, func() float64 { return float64(open.Load()) })
	f.sessions = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "gateway", Name: "udp_sessions",
		Help: "Clients of UDP with an endpoint."}, func() float64 { return float64(sessions.Load()) })
	f.now = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "gateway", Name: "requests_in_flight",
		Help: "Requests that have not ended."}, func() float64 { return float64(f.inFlight.Load()) })
	return f
}

func (f *figures) all() []prometheus.Collector {
	return []prometheus.Collector{f.requests, f.seconds, f.retries, f.bytes, f.lost, f.refused, f.open, f.now,
		f.streams, f.dropped, f.sessions}
}

// Describe implements prometheus.Collector.
func (f *figures) Describe(out chan<- *prometheus.Desc) {
	for _, c := range f.all() {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (f *figures) Collect(out chan<- prometheus.Metric) {
	for _, c := range f.all() {
		c.Collect(out)
	}
}

func keyOf(s *httproute.Source) routeKey {
	if s == nil {
		return routeKey{}
	}
	return routeKey{s.Kind, s.Namespace, s.Name}
}

// other is the route for those beyond the limit.
func other() routeKey { return routeKey{"other", "", ""} }

func (f *figures) route(key routeKey) *routeFigures {
	f.mu.RLock()
	r := f.routes[key]
	f.mu.RUnlock()
	if r != nil {
		return r
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r = f.routes[key]; r != nil {
		return r
	}
	if len(f.routes) >= mostSeries && key != other() {
		if key = other(); f.routes[key] != nil {
			return f.routes[key]
		}
	}
	seconds, _ := f.seconds.WithLabelValues(key.kind, key.namespace, key.name).(prometheus.ExemplarObserver)
	r = &routeFigures{seconds: seconds, retries: f.retries.WithLabelValues(key.kind, key.namespace, key.name),
		in:      f.bytes.WithLabelValues("in", key.kind, key.namespace, key.name),
		out:     f.bytes.WithLabelValues("out", key.kind, key.namespace, key.name),
		streams: f.streams.WithLabelValues(key.kind, key.namespace, key.name)}
	f.routes[key] = r
	return r
}

// pair returns the metrics of a backend for a route; nil: the route was removed while it had the request.
func (f *figures) pair(of *routeFigures, key pairKey) *pairFigures {
	f.mu.RLock()
	p := f.pairs[key]
	f.mu.RUnlock()
	if p != nil {
		return p
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if p = f.pairs[key]; p != nil || of.gone {
		return p
	}
	if last := (pairKey{route: other()}); len(f.pairs) >= mostSeries && key != last {
		if key = last; f.pairs[key] != nil {
			return f.pairs[key]
		}
	}
	backend := ""
	if key.backend.Name != "" {
		backend = key.backend.String()
	}
	p = &pairFigures{}
	for class := range codes {
		p[class] = f.requests.WithLabelValues(backend, codeName(class), key.route.kind, key.route.namespace,
			key.route.name)
	}
	f.pairs[key] = p
	return p
}

func codeName(class int) string {
	if class == 0 {
		return "none"
	}
	return strconv.Itoa(class) + "xx"
}

// removeUnserved removes the time series of routes that are not served any more.
func (f *figures) removeUnserved(served map[routeKey]bool) {
	f.drop(func(key routeKey) bool { return key.kind != "" && key != other() && !served[key] })
}

// forget removes the series of one route.
func (f *figures) forget(key routeKey) { f.drop(func(k routeKey) bool { return k == key }) }

// drop removes the series of the routes that are gone.
func (f *figures) drop(gone func(routeKey) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dropped := map[routeKey]bool{}
	for key, r := range f.routes {
		if gone(key) {
			r.gone, dropped[key] = true, true
			delete(f.routes, key)
		}
	}
	for pair := range f.pairs {
		if gone(pair.route) {
			dropped[pair.route] = true
			delete(f.pairs, pair)
		}
	}
	for key := range dropped { // any order: each by itself
		labels := prometheus.Labels{"kind": key.kind, "namespace": key.namespace, "name": key.name}
		f.seconds.DeletePartialMatch(labels)
		f.retries.DeletePartialMatch(labels)
		f.bytes.DeletePartialMatch(labels)
		f.streams.DeletePartialMatch(labels)
		f.requests.DeletePartialMatch(labels)
	}
}

// seenRequest follows one request to its end.
type seenRequest struct {
	http.ResponseWriter
	began    time.Time
	status   int // 0: none yet
	sent     int64
	received countedBody
	figures  *figures
	source   *httproute.Source
	route    *routeFigures // of source
	rule     string
	backend  httproute.Ref
	endpoint string // the last one that was tried
	attempts int
	inferred accesslog.Inferred
	span     *spans.Request // nil: not traced
}

// WriteHeader implements http.ResponseWriter.
func (r *seenRequest) WriteHeader(status int) {
	if r.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *seenRequest) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.sent += int64(n)
	return n, err
}

// Unwrap gives a ResponseController access to the server's writer.
func (r *seenRequest) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Hijack implements http.Hijacker, for connections that switch to another protocol.
func (r *seenRequest) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if r.status == 0 {
		r.status = http.StatusSwitchingProtocols
	}
	conn, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return &proxy.UpgradedClient{Conn: conn, Patience: slowClient}, rw, nil
}

// countedBody counts the bytes that are read from a body.
type countedBody struct {
	io.ReadCloser
	n atomic.Int64 // a transport may read after the response
}

// Read implements io.Reader.
func (c *countedBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// met records which rule serves the request.
func (r *seenRequest) met(res *httproute.Result) {
	if r != nil {
		r.source, r.rule = res.Source, res.Rule.Name
		r.route = r.figures.route(keyOf(res.Source)) // now: at the end the route may have been removed
	}
}

// tried records an attempt at an endpoint.
func (r *seenRequest) tried(b *httproute.Backend, t *Target) {
	if r != nil {
		r.backend, r.endpoint = b.Ref, t.host
		r.attempts++
	}
}

// seenOf is the seenRequest of a writer, or nil.
func seenOf(w http.ResponseWriter) *seenRequest {
	r, _ := w.(*seenRequest)
	return r
}

// begin follows a request until ended is called with its result.
func (t *telemetry) begin(w http.ResponseWriter, r *http.Request) *seenRequest {
	rec := &seenRequest{ResponseWriter: w, began: time.Now(), figures: t.figures}
	if r.Body != nil && r.Body != http.NoBody {
		rec.received.ReadCloser = r.Body
		r.Body = &rec.received
	}
	t.figures.inFlight.Add(1)
	return rec
}

func (t *telemetry) ended(rec *seenRequest, r *http.Request) {
	took := time.Since(rec.began)
	f := t.figures
	f.inFlight.Add(-1)
	key := keyOf(rec.source)
	if rec.status == http.StatusBadGateway && r.Context().Err() != nil {
		rec.status = 0 // the client has left
	}
	route := rec.route
	if route == nil {
		route = f.route(key)
	}
	if rec.attempts > 1 {
		route.retries.Add(float64(rec.attempts - 1))
	}
	route.in.Add(float64(rec.received.n.Load()))
	route.out.Add(float64(rec.sent))
	id := rec.span.TraceID()
	if id == "" {
		id = spans.TraceID(r.Header.Get("Traceparent"))
	}
	if rec.status != http.StatusSwitchingProtocols { // the duration of a WebSocket is not a latency
		if id != "" {
			route.seconds.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": id})
		} else if o, ok := route.seconds.(prometheus.Observer); ok {
			o.Observe(took.Seconds())
		}
	}
	if p := f.pair(route, pairKey{key, rec.backend}); p != nil {
		p[min(rec.status/100, codes-1)].Inc()
	}
	if t.log != nil {
		t.write(rec, r, took, id)
	}
	if rec.span.Recording() {
		o := spans.Outcome{Status: rec.status, Rule: rec.rule}
		o.Route, o.Backend = rec.served()
		rec.span.End(o)
	}
}

// attempt begins the span of an attempt at an endpoint; nil, and the same request, without traces.
func (r *seenRequest) attempt(req *http.Request, at netip.AddrPort) (*http.Request, *spans.Attempt) {
	if r == nil {
		return req, nil
	}
	return r.span.Attempt(req, at, r.attempts-1)
}

// servedRoutes are the routes of a plan.
func servedRoutes(plan *gatewayplan.Plan) map[routeKey]bool {
	out := map[routeKey]bool{}
	for _, p := range plan.Ports {
		for _, served := range p.Table.Routes() {
			out[keyOf(&served.Route.Source)] = true
		}
	}
	for _, ports := range []map[netip.AddrPort]*gatewayplan.Port{plan.Ports, plan.UDP} {
		for _, p := range ports {
			for i := range p.Streams {
				out[keyOf(&p.Streams[i].Source)] = true
			}
		}
	}
	return out
}
