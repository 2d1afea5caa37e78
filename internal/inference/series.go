package inference

import (
	"strconv"
	"sync/atomic"

	k8smetrics "k8s.io/component-base/metrics"

	"carob/internal/core/routing"
)

// mostSeries limits the series that are kept. The time series themselves are limited by mostNames.
const mostSeries = 1000

// seriesKey identifies the series of the requests for a model.
type seriesKey struct {
	model, target string // as in the request
	priority      int
}

// series are the time series of requests that have their labels in common: to find each by its labels takes longer than
// to count in it.
type series struct {
	model, target string // the labels
	requests      k8smetrics.CounterMetric
	running       k8smetrics.GaugeMetric

	sizes, seconds, ttft, tpot, perToken, answers, input, output, cached observed
}

// observed is a time series of a histogram, which exists from its first value on.
type observed struct {
	of    *k8smetrics.HistogramVec
	s     *series
	found atomic.Pointer[k8smetrics.ObserverMetric]
}

func (o *observed) get() k8smetrics.ObserverMetric {
	if m := o.found.Load(); m != nil {
		return *m
	}
	m := o.of.WithLabelValues(o.s.model, o.s.target)
	o.found.Store(&m)
	return m
}

// of returns the series of a request.
func (f *figures) of(r *routing.Request) *series {
	key := seriesKey{r.Model, r.Target, r.Priority}
	if key.target == "" {
		key.target = r.Model
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.kept[key]; s != nil {
		return s
	}
	s := &series{model: f.named("model", key.model), target: f.named("model", key.target)}
	s.requests = f.requests.WithLabelValues(s.model, s.target, f.named("priority", strconv.Itoa(key.priority)))
	s.running = f.running.WithLabelValues(s.model)
	for o, of := range map[*observed]*k8smetrics.HistogramVec{&s.sizes: f.sizes, &s.seconds: f.seconds, &s.ttft: f.ttft,
		&s.tpot: f.tpot, &s.perToken: f.perToken, &s.answers: f.answers, &s.input: f.input, &s.output: f.output,
		&s.cached: f.cached} {
		o.of, o.s = of, s
	}
	if len(f.kept) < mostSeries {
		f.kept[key] = s
	}
	return s
}
