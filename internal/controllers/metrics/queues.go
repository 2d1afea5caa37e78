package metrics

import (
	"runtime"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The metrics of queues: those of the controllers here, and those of the libraries in this
// process.
var (
	depth = queueGauge("depth", "Current depth of workqueue")
	adds  = counter(workqueues, "adds_total", "Total number of adds handled by workqueue", metrics.BETA, "name")

	retries = counter(workqueues, "retries_total", "Total number of retries handled by workqueue", metrics.BETA, "name")
	waited  = queueHistogram("queue_duration_seconds",
		"How long in seconds an item stays in workqueue before being requested.")
	worked     = queueHistogram("work_duration_seconds", "How long in seconds processing an item from workqueue takes.")
	unfinished = queueGauge("unfinished_work_seconds", "How many seconds of work has done that is in progress and "+
		"hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck "+
		"threads by observing the rate at which this increases.")
	longest = queueGauge("longest_running_processor_seconds",
		"How many seconds has the longest running processor for workqueue been running.")
)

const workqueues = "workqueue"

func queueGauge(name, help string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: workqueues, Name: name, Help: help,
		StabilityLevel: metrics.BETA}, []string{"name"})
}

func queueHistogram(name, help string) *metrics.HistogramVec {
	return histogram(workqueues, name, help, metrics.BETA, metrics.ExponentialBuckets(10e-9, 10, 10), "name")
}

// registerQueues must not run before the feature gates are set: initialization is too early.
var registerQueues = sync.OnceFunc(func() {
	legacyregistry.MustRegister(depth, adds, retries, waited, worked, unfinished, longest)
})

// Only the first provider has an effect. Go initializes packages that wait for nothing in the order of
// their import paths, so this one comes before the library's (k8s.io/component-base/…/workqueue).
func init() { workqueue.SetProvider(libraryQueues{}) }

// libraryQueues measures the queues of libraries as k8s.io/component-base does, except the time spent on
// unfinished work, which stays 0: for it, the library wakes up twice a second for each queue, also when
// idle. The queues of two admission plugins caused half of the wake-ups of an idle process.
type libraryQueues struct{}

func (libraryQueues) NewDepthMetric(name string) workqueue.GaugeMetric {
	registerQueues()
	return depth.WithLabelValues(name)
}

func (libraryQueues) NewAddsMetric(name string) workqueue.CounterMetric {
	registerQueues()
	return adds.WithLabelValues(name)
}

func (libraryQueues) NewLatencyMetric(name string) workqueue.HistogramMetric {
	registerQueues()
	return waited.WithLabelValues(name)
}

func (libraryQueues) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	registerQueues()
	return worked.WithLabelValues(name)
}

func (libraryQueues) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	registerQueues()
	unfinished.WithLabelValues(name).Set(0)
	return endOfLoop{}
}

func (libraryQueues) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	registerQueues()
	longest.WithLabelValues(name).Set(0)
	return endOfLoop{}
}

func (libraryQueues) NewRetriesMetric(name string) workqueue.CounterMetric {
	registerQueues()
	return retries.WithLabelValues(name)
}

// endOfLoop ends the goroutine that sets it, which does nothing else; its deferred calls unlock the queue.
type endOfLoop struct{}

// Set ends the calling goroutine.
func (endOfLoop) Set(float64) { runtime.Goexit() }

// Queue measures one queue of keys. The zero value measures nothing.
type Queue struct {
	depth, unfinished, longest metrics.GaugeMetric
	adds, retries              metrics.CounterMetric
	waited, worked             metrics.ObserverMetric
}

// NewQueue returns the metrics of a queue, under upstream's name for it; after Register.
func NewQueue(name string) Queue {
	if !depth.IsCreated() {
		return Queue{}
	}
	return Queue{
		depth: depth.WithLabelValues(name), unfinished: unfinished.WithLabelValues(name),
		longest: longest.WithLabelValues(name), adds: adds.WithLabelValues(name),
		retries: retries.WithLabelValues(name), waited: waited.WithLabelValues(name),
		worked: worked.WithLabelValues(name),
	}
}

// Measured reports whether the metrics are registered.
func (q *Queue) Measured() bool { return q.depth != nil && q.waited != nil && q.adds != nil }

// Added records that a key was added to the queue.
func (q *Queue) Added() {
	if q.Measured() {
		q.adds.Inc()
		q.depth.Inc()
	}
}

// Taken records that a worker starts with a key, and how long the key waited.
func (q *Queue) Taken(wait time.Duration) {
	if q.Measured() {
		q.depth.Dec()
		q.waited.Observe(wait.Seconds())
	}
}

// Done records that a worker has ended, and how long it ran.
func (q *Queue) Done(took time.Duration) {
	if q.Measured() {
		q.worked.Observe(took.Seconds())
	}
}

// Later records that a key was added with a delay.
func (q *Queue) Later() {
	if q.Measured() {
		q.retries.Inc()
	}
}

// Running sets the total time of all running workers, and that of the longest running one.
func (q *Queue) Running(sum, first time.Duration) {
	if q.Measured() {
		q.unfinished.Set(sum.Seconds())
		q.longest.Set(first.Seconds())
	}
}
