package scheduler

import (
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The metrics of kube-scheduler, under its names, labels and buckets, so that dashboards and alerts for it work.
// They appear at /metrics of the API server, which runs in the same process. Nothing is counted before
// RegisterMetrics.

const metricsSubsystem = "scheduler"

// Results of attempts.
const (
	scheduled = "scheduled"
	noRoom    = "unschedulable"
	broken    = "error"
)

func gaugeVec(name, help string, level metrics.StabilityLevel, label string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: metricsSubsystem, Name: name, Help: help,
		StabilityLevel: level}, []string{label})
}

func histogramOpts(name, help string, level metrics.StabilityLevel, start float64, count int) *metrics.HistogramOpts {
	return &metrics.HistogramOpts{Subsystem: metricsSubsystem, Name: name, Help: help, StabilityLevel: level,
		Buckets: metrics.ExponentialBuckets(start, 2, count)}
}

var (
	attemptsTotal = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: metricsSubsystem, Name: "schedule_attempts_total",
		Help: "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, " +
			"while 'error' means an internal scheduler problem.", StabilityLevel: metrics.STABLE},
		[]string{"result", "profile"})
	attemptSeconds = metrics.NewHistogramVec(histogramOpts("scheduling_attempt_duration_seconds",
		"Scheduling attempt latency in seconds (scheduling algorithm + binding)", metrics.STABLE, 0.001, 15),
		[]string{"result", "profile"})
	decisionSeconds = metrics.NewHistogram(histogramOpts("scheduling_algorithm_duration_seconds",
		"Scheduling algorithm latency in seconds", metrics.BETA, 0.001, 15))
	podSeconds = metrics.NewHistogramVec(histogramOpts("pod_scheduling_sli_duration_seconds",
		"E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve "+
			"multiple scheduling attempts.", metrics.BETA, 0.01, 20), []string{"attempts"})
	podAttempts = metrics.NewHistogram(histogramOpts("pod_scheduling_attempts",
		"Number of attempts to successfully schedule a pod.", metrics.STABLE, 1, 5))
	pendingPods = gaugeVec("pending_pods", "Number of pending pods, by the queue type: 'active', 'backoff', "+
		"'unschedulable' (tried without success), or 'gated' (never tried).", metrics.STABLE, "queue")
	cacheSize = gaugeVec("cache_size", "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
		metrics.ALPHA, "type")
	preemptions = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: metricsSubsystem, Name: "preemption_attempts_total",
		Help: "Total preemption attempts in the cluster till now", StabilityLevel: metrics.STABLE})
	preemptionVictims = metrics.NewHistogram(histogramOpts("preemption_victims",
		"Number of selected preemption victims for preemption initiated by a single pod", metrics.STABLE, 1, 7))
)

// RegisterMetrics makes the families part of /metrics. Call it before the scheduler is made.
func RegisterMetrics() { registerMetrics() }

var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(attemptsTotal, attemptSeconds, decisionSeconds, podSeconds, podAttempts, pendingPods,
		cacheSize, preemptions, preemptionVictims)
	for _, name := range queueNames {
		pendingPods.WithLabelValues(name).Set(0)
	}
})

// attempted counts an attempt that has ended.
func (s *Scheduler) attempted(it *item, result string) {
	profile := corev1.DefaultSchedulerName
	if p := s.profileOf(it.pod.Object); p != nil {
		profile = p.Name
	}
	now := time.Now()
	attemptsTotal.WithLabelValues(result, profile).Inc()
	attemptSeconds.WithLabelValues(result, profile).Observe(now.Sub(it.began).Seconds())
	if result == scheduled {
		tries := strconv.Itoa(it.tries)
		if it.tries >= 15 {
			tries = "15+"
		}
		podSeconds.WithLabelValues(tries).Observe(now.Sub(it.first).Seconds())
		podAttempts.Observe(float64(it.tries))
	}
}

// queueNames are the areas of the queue in which pods are pending.
var queueNames = [...]string{gated: "gated", active: "active", waiting: "backoff", unschedulable: "unschedulable"}

// shownSizes are the values of the gauges of the queue and the caches.
type shownSizes struct {
	areas                [len(queueNames)]int
	nodes, pods, assumed int
}

// showSizes sets the gauges that have changed since the last call.
func (s *Scheduler) showSizes() {
	for a, name := range queueNames {
		showSize(pendingPods, name, &s.shown.areas[a], s.queue.sizes[a])
	}
	showSize(cacheSize, "nodes", &s.shown.nodes, len(s.nodes))
	showSize(cacheSize, "pods", &s.shown.pods, len(s.bound))
	showSize(cacheSize, "assumed_pods", &s.shown.assumed, len(s.assumed))
}

func showSize(g *metrics.GaugeVec, label string, shown *int, now int) {
	if *shown != now {
		*shown = now
		g.WithLabelValues(label).Set(float64(now))
	}
}
