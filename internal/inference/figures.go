package inference

import (
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"carob/internal/core/routing"
)

// mostNames limits the values of a label that clients choose; further ones are counted as "other", as upstream does.
const mostNames = 1000

// figures are the metrics, under the names of the inference extension (2.5). They are made and registered with
// the first pool.
type figures struct {
	requests, errors, attempts, queued, dropped, retries, failures *k8smetrics.CounterVec
	running                                                        *k8smetrics.GaugeVec
	seconds, ttft, tpot, perToken                                  *k8smetrics.HistogramVec
	sizes, answers, input, output, cached                          *k8smetrics.HistogramVec
	deciding, hits, waiting                                        *k8smetrics.HistogramVec

	mu    sync.Mutex
	pools map[*Pool]bool
	names map[string]map[string]bool // by label
	kept  map[seriesKey]*series
	chose map[choiceKey]k8smetrics.CounterMetric // of attempts
}

// newFigures registers the figures once for the process.
var newFigures = sync.OnceValue(func() *figures {
	const objective, extension = "inference_objective", "inference_extension"
	models := []string{"model_name", "target_model_name"}
	counter := func(subsystem, name, help string, labels ...string) *k8smetrics.CounterVec {
		return k8smetrics.NewCounterVec(&k8smetrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help,
			StabilityLevel: k8smetrics.ALPHA}, labels)
	}
	histogram := func(subsystem, name, help string, buckets []float64, labels ...string) *k8smetrics.HistogramVec {
		return k8smetrics.NewHistogramVec(&k8smetrics.HistogramOpts{Subsystem: subsystem, Name: name, Help: help,
			Buckets: buckets, StabilityLevel: k8smetrics.ALPHA}, labels)
	}
	long := []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45,
		60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	token := []float64{0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6,
		0.8, 1, 1.5, 2, 3, 4.5, 6, 12, 18, 24, 30, 36, 48, 60, 90, 120, 180, 270, 360}
	short := []float64{0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1}
	doubled := func(first float64, n int) []float64 { return k8smetrics.ExponentialBuckets(first, 2, n) }
	tokens := append([]float64{1}, doubled(8, 18)...)
	f := &figures{pools: map[*Pool]bool{}, names: map[string]map[string]bool{}, kept: map[seriesKey]*series{},
		chose:    map[choiceKey]k8smetrics.CounterMetric{},
		requests: counter(objective, "request_total", "Requests by model", append(models, "priority")...),
		errors: counter(objective, "request_error_total", "Requests that were not answered, or with an error",
			append(models, "error_code")...),
		seconds: histogram(objective, "request_duration_seconds", "Time from the request to the end of its answer",
			long, models...),
		ttft: histogram(objective, "request_ttft_seconds", "Time from the request to the first byte of its answer", long,
			models...),
		tpot: histogram(objective, "request_tpot_seconds", "Time for each token after the first byte", token, models...),
		perToken: histogram(objective, "normalized_time_per_output_token_seconds",
			"Time of a request, divided by the tokens of its answer",
			[]float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10}, models...),
		sizes: histogram(objective, "request_sizes", "Bytes of the body", doubled(64, 25), models...),
		answers: histogram(objective, "response_sizes", "Bytes of the answer",
			append([]float64{1}, doubled(8, 14)...), models...),
		input:  histogram(objective, "input_tokens", "Tokens of prompts", tokens, models...),
		output: histogram(objective, "output_tokens", "Tokens of answers", tokens[:12], models...),
		cached: histogram(objective, "prompt_cached_tokens", "Prompt tokens that the server found in its cache",
			tokens, models...),
		running: k8smetrics.NewGaugeVec(&k8smetrics.GaugeOpts{Subsystem: objective, Name: "running_requests",
			Help: "Requests that are being answered", StabilityLevel: k8smetrics.ALPHA}, []string{"model_name"}),
		deciding: histogram(extension, "scheduler_e2e_duration_seconds", "How long choosing an endpoint took", short),
		attempts: counter(extension, "scheduler_attempts_total", "Choices of endpoints", "status", "target_model_name",
			"pod_name", "namespace", "port"),
		hits: histogram(extension, "prefix_indexer_hit_ratio", "Part of the prompt that the chosen server has in its cache",
			[]float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}),
		waiting: histogram(extension, "flow_control_request_queue_duration_seconds", "How long requests were held", long,
			"fairness_id", "priority", "outcome", "inference_pool"),
		queued:  counter(extension, "flow_control_requests_total", "Requests that were held", "outcome", "inference_pool"),
		dropped: counter(extension, "request_dropped_total", "Requests that were refused", "reason", "priority"),
		retries: counter(extension, "request_retries_total", "Requests that went to a second server", "inference_pool"),
		failures: counter(extension, "scrape_failures_total", "Metrics of model servers that could not be read",
			"inference_pool"),
	}
	legacyregistry.MustRegister(f.requests, f.errors, f.seconds, f.ttft, f.tpot, f.perToken, f.sizes, f.answers,
		f.input,
		f.output, f.cached, f.running, f.deciding, f.attempts, f.hits, f.waiting, f.queued, f.dropped, f.retries,
		f.failures)
	legacyregistry.CustomMustRegister(&gauges{f: f})
	return f
})

func (f *figures) add(p *Pool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pools[p] = true
}

func (f *figures) remove(p *Pool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pools, p)
	for other := range f.pools {
		if other.name.Name == p.name.Name { // it has the same series
			return
		}
	}
	of := prometheus.Labels{"inference_pool": p.name.Name}
	for _, series := range []interface {
		DeletePartialMatch(of prometheus.Labels) int
	}{f.waiting, f.queued, f.retries,
		f.failures} {
		series.DeletePartialMatch(of)
	}
}

// name returns a label that a client chose, or "other" if there are too many, or if it cannot be a label.
func (f *figures) name(label, value string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.named(label, value)
}

// named is name with the lock held.
func (f *figures) named(label, value string) string {
	seen := f.names[label]
	if seen == nil {
		seen = map[string]bool{}
		f.names[label] = seen
	}
	switch {
	case seen[value]:
	case len(seen) >= mostNames || len(value) > 256 || !utf8.ValidString(value):
		return "other"
	default:
		seen[value] = true
	}
	return value
}

func (f *figures) priority(n int) string { return f.name("priority", strconv.Itoa(n)) }

func (f *figures) decided(k *Pick, took time.Duration) {
	s := f.of(k.request)
	k.series = s
	s.requests.Inc()
	s.running.Inc()
	s.sizes.get().Observe(float64(k.request.Bytes))
	if took > 0 {
		s.deciding.get().Observe(took.Seconds())
	}
	if n := len(k.request.Prefix); n > 0 {
		s.hits.get().Observe(float64(k.Matched) / float64(n))
	}
	f.chosen(s.target, k).Inc()
}

func (f *figures) refused(r *routing.Request, why routing.Reason) {
	s := f.of(r)
	s.requests.Inc()
	f.errors.WithLabelValues(s.model, s.target, strconv.Itoa(why.Status())).Inc()
	f.dropped.WithLabelValues(string(why), f.priority(r.Priority)).Inc()
	f.attempts.WithLabelValues("failure", s.target, "", "", "").Inc()
}

func (f *figures) waited(pool types.NamespacedName, w *waiter, served bool) {
	outcome := "Dispatched"
	if !served {
		outcome = string(w.refused)
	}
	id := w.request.FairnessID
	if id == "" {
		id = routing.DefaultFairnessID
	}
	f.waiting.WithLabelValues(f.name("fairness", id), f.priority(w.request.Priority), outcome,
		pool.Name).Observe(time.Since(w.since).Seconds())
	f.queued.WithLabelValues(outcome, pool.Name).Inc()
}

func (f *figures) retried(pool types.NamespacedName) { f.retries.WithLabelValues(pool.Name).Inc() }

func (f *figures) scrapeFailed(pool types.NamespacedName) {
	f.failures.WithLabelValues(pool.Name).Inc()
}

// errorCode is the label of a failed request. Servers, and gateways that call the picker, choose the status: each that
// no standard has would be a series for each model.
func errorCode(status int) string {
	switch {
	case status < 400:
		return "502"
	case http.StatusText(status) == "":
		return "other"
	}
	return strconv.Itoa(status)
}

func (f *figures) ended(k *Pick, r *Result, now time.Time) {
	s := k.series
	if s == nil { // decided was not called: the client left when the request was released
		return
	}
	s.running.Dec()
	took := now.Sub(k.request.Received)
	s.seconds.get().Observe(took.Seconds())
	if r.Outcome == routing.Failed || r.Status >= 400 {
		f.errors.WithLabelValues(s.model, s.target, errorCode(r.Status)).Inc()
	}
	if r.AnswerBytes > 0 {
		s.answers.get().Observe(float64(r.AnswerBytes))
	}
	if r.InputTokens > 0 {
		s.input.get().Observe(float64(r.InputTokens))
		s.cached.get().Observe(float64(r.CachedTokens))
	}
	if r.OutputTokens > 0 {
		s.output.get().Observe(float64(r.OutputTokens))
		s.perToken.get().Observe(took.Seconds() / float64(r.OutputTokens))
	}
	if !k.first.IsZero() {
		s.ttft.get().Observe(k.first.Sub(k.request.Received).Seconds())
		if r.OutputTokens > 1 {
			s.tpot.get().Observe(now.Sub(k.first).Seconds() / float64(r.OutputTokens-1))
		}
	}
}

// gauges are computed from the pools when the metrics are read.
type gauges struct {
	k8smetrics.BaseStableCollector
	f *figures

	once                                                             sync.Once
	cache, queue, running, ready, perPod, held, bytes, full, indexed *k8smetrics.Desc
	all, waiting                                                     *k8smetrics.Desc
}

func (g *gauges) describe() {
	g.once.Do(func() {
		own, flow := []string{"name", "namespace"}, []string{"inference_pool", "namespace"}
		desc := func(name, help string, labels ...string) *k8smetrics.Desc {
			return k8smetrics.NewDesc(name, help, labels, nil, k8smetrics.ALPHA, "")
		}
		g.cache = desc("inference_pool_average_kv_cache_utilization", "Average use of the KV caches, 0 to 1", own...)
		g.queue = desc("inference_pool_average_queue_size", "Average number of requests waiting at a server", own...)
		g.running = desc("inference_pool_average_running_requests", "Average number of requests a server works on", own...)
		g.ready = desc("inference_pool_ready_pods", "Servers that take requests", own...)
		g.all = desc("inference_pool_requests", "Requests that are held, wait at servers, or are answered", own...)
		g.waiting = desc("inference_pool_queue_size", "Requests that are held, or wait at servers", own...)
		g.perPod = desc("inference_pool_per_pod_queue_size", "Requests waiting at a server", "name", "namespace", "model_server_pod")
		g.held = desc("inference_extension_flow_control_queue_size", "Requests that are held", flow...)
		g.bytes = desc("inference_extension_flow_control_queue_bytes", "Bytes of requests that are held", flow...)
		g.full = desc("inference_extension_flow_control_pool_saturation", "How full the pool is; 1 is full", flow...)
		g.indexed = desc("inference_extension_prefix_indexer_size", "Blocks in the index of prompts", flow...)
	})
}

// DescribeWithStability implements StableCollector.
func (g *gauges) DescribeWithStability(ch chan<- *k8smetrics.Desc) {
	g.describe()
	for _, d := range []*k8smetrics.Desc{g.cache, g.queue, g.running, g.ready, g.perPod, g.held, g.bytes, g.full,
		g.indexed, g.all, g.waiting} {
		ch <- d
	}
}

// CollectWithStability implements StableCollector.
func (g *gauges) CollectWithStability(ch chan<- k8smetrics.Metric) {
	g.describe()
	g.f.mu.Lock()
	pools := make([]*Pool, 0, len(g.f.pools))
	for p := range g.f.pools {
		pools = append(pools, p)
	}
	g.f.mu.Unlock()
	seen := map[string]bool{} // a duplicate series would make the whole page fail
	for _, p := range pools {
		if seen[p.name.String()] {
			continue
		}
		seen[p.name.String()] = true
		sums, servers := p.Statuses()
		send := func(d *k8smetrics.Desc, value float64, labels ...string) {
			labels = append([]string{p.name.Name, p.name.Namespace}, labels...)
			ch <- k8smetrics.NewLazyConstMetric(d, k8smetrics.GaugeValue, value, labels...)
		}
		send(g.cache, sums.Cache)
		send(g.queue, sums.Queue)
		send(g.running, sums.Running)
		send(g.ready, float64(sums.Ready))
		send(g.held, float64(sums.Held))
		send(g.all, float64(sums.Held+sums.Requests))
		send(g.waiting, float64(sums.Held+sums.Waiting))
		send(g.bytes, float64(sums.HeldBytes))
		send(g.full, sums.Saturation)
		send(g.indexed, float64(sums.Pairs))
		for i := range servers {
			s := &servers[i]
			name := s.Name()
			id := p.name.String() + "/" + name
			if seen[id] {
				continue
			}
			seen[id] = true
			send(g.perPod, float64(s.Stats.Waiting), name)
		}
	}
}
