package inference

import (
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
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
	deciding, hits                                                       observed // without labels
}

// observed is a time series of a histogram, which exists from its first value on.
type observed struct {
	of     *k8smetrics.HistogramVec
	labels []string
	found  atomic.Pointer[k8smetrics.ObserverMetric]
}

func (o *observed) get() k8smetrics.ObserverMetric {
	if m := o.found.Load(); m != nil {
		return *m
	}
	m := o.of.WithLabelValues(o.labels...)
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
		o.of, o.labels = of, []string{s.model, s.target}
	}
	s.deciding.of, s.hits.of = f.deciding, f.hits
	if len(f.kept) < mostSeries {
		f.kept[key] = s
	}
	return s
}

// mostChoices limits the series of chosen endpoints: there is one for each model and each port of each pod. Further
// models are called "other".
const mostChoices = 10_000

// choiceKey identifies the series of an endpoint that was chosen for a model.
type choiceKey struct {
	target string // the label
	pod    types.NamespacedName
	port   uint16
}

// chosen returns the series of the first endpoint of a choice.
func (f *figures) chosen(target string, k *Pick) k8smetrics.CounterMetric {
	key := choiceKey{target, k.pod, k.addresses[0].Port()}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.chose[key]
	if c == nil && len(f.chose) >= mostChoices {
		key.target = "other"
		c = f.chose[key]
	}
	if c == nil {
		port := strconv.Itoa(int(key.port))
		c = f.attempts.WithLabelValues("success", key.target, key.pod.Name, key.pod.Namespace, port)
		f.chose[key] = c
	}
	return c
}

// left removes the series of pods that have left a pool. Otherwise each new pod would leave some behind.
func (f *figures) left(pods map[types.NamespacedName]bool) {
	if len(pods) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.chose { // any order: each by itself
		if pods[key.pod] {
			delete(f.chose, key)
		}
	}
	for pod := range pods { // any order: each by itself
		f.attempts.DeletePartialMatch(prometheus.Labels{"pod_name": pod.Name, "namespace": pod.Namespace})
	}
}
