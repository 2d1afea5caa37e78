package figures

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // it owns the families workqueue_*
)

// The families of queues are the library's: the API server's own queues are in them, too.
var depth, adds, retries, unfinished, longest, waited, worked prometheus.Collector

func registerQueues() {
	// The library registers its families with its first queue.
	q := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: "namespace"})
	q.ShutDown()
	depth = existing("depth", "[BETA] Current depth of workqueue")
	adds = existing("adds_total", "[BETA] Total number of adds handled by workqueue")
	retries = existing("retries_total", "[BETA] Total number of retries handled by workqueue")
	waited = existing("queue_duration_seconds",
		"[BETA] How long in seconds an item stays in workqueue before being requested.")
	worked = existing("work_duration_seconds",
		"[BETA] How long in seconds processing an item from workqueue takes.")
	unfinished = existing("unfinished_work_seconds", "[BETA] How many seconds of work has done that is in progress and "+
		"hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck "+
		"threads by observing the rate at which this increases.")
	longest = existing("longest_running_processor_seconds",
		"[BETA] How many seconds has the longest running processor for workqueue been running.")
}

// existing returns the family that is registered under a name already; nil when a new version of the library
// has it otherwise (a test notices).
func existing(name, help string) prometheus.Collector {
	own := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "workqueue_" + name, Help: help}, []string{"name"})
	err := legacyregistry.Registerer().Register(own)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		return there.ExistingCollector
	}
	if err == nil {
		legacyregistry.Registerer().Unregister(own)
	}
	return nil
}

// Queue measures one queue of keys. The zero value measures nothing.
type Queue struct {
	depth, unfinished, longest metrics.GaugeMetric
	adds, retries              metrics.CounterMetric
	waited, worked             metrics.ObserverMetric
}

// NewQueue returns the figures of a queue, under upstream's name for it.
func NewQueue(name string) Queue {
	var q Queue
	for at, family := range map[*metrics.GaugeMetric]prometheus.Collector{&q.depth: depth, &q.unfinished: unfinished,
		&q.longest: longest} {
		if v, ok := family.(*metrics.GaugeVec); ok {
			*at = v.WithLabelValues(name)
		}
	}
	for at, family := range map[*metrics.CounterMetric]prometheus.Collector{&q.adds: adds, &q.retries: retries} {
		if v, ok := family.(*metrics.CounterVec); ok {
			*at = v.WithLabelValues(name)
		}
	}
	for at, family := range map[*metrics.ObserverMetric]prometheus.Collector{&q.waited: waited, &q.worked: worked} {
		if v, ok := family.(*metrics.HistogramVec); ok {
			*at = v.WithLabelValues(name)
		}
	}
	return q
}

// Measured reports whether anything is measured.
func (q *Queue) Measured() bool { return q.depth != nil && q.waited != nil && q.adds != nil }

// Added takes that a key was added to those that wait for a worker.
func (q *Queue) Added() {
	if q.Measured() {
		q.adds.Inc()
		q.depth.Inc()
	}
}

// Taken takes that a worker begins with a key that waited so long.
func (q *Queue) Taken(wait time.Duration) {
	if q.Measured() {
		q.depth.Dec()
		q.waited.Observe(wait.Seconds())
	}
}

// Done takes that a worker has ended after so long.
func (q *Queue) Done(took time.Duration) {
	if q.Measured() {
		q.worked.Observe(took.Seconds())
	}
}

// Later takes that a key is to be looked at after a while.
func (q *Queue) Later() {
	if q.Measured() {
		q.retries.Inc()
	}
}

// Running sets how long all running workers have been running together, and the one that began first.
func (q *Queue) Running(sum, first time.Duration) {
	if q.Measured() {
		q.unfinished.Set(sum.Seconds())
		q.longest.Set(first.Seconds())
	}
}
