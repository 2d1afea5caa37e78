package vpa

import (
	"math"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"carob/internal/core/workload/vpa"
)

// The metrics have the names of upstream's recommender, updater and admission controller.
var (
	usageCount = gauge("vpa_recommender", "aggregate_container_states_count",
		"Number of aggregate container states being tracked by the recommender")
	objectCount = gauges("vpa_recommender", "vpa_objects_count", "Number of VPA objects present in the cluster.",
		"update_mode", "has_recommendation", "api", "matches_pods", "unsupported_config")
	recommendationLatency = metrics.NewHistogram(&metrics.HistogramOpts{Subsystem: "vpa_recommender",
		Name:           "recommendation_latency_seconds",
		Help:           "Time elapsed from creating a valid VPA configuration to the first recommendation.",
		Buckets:        []float64{1, 2, 5, 7.5, 10, 20, 30, 40, 50, 60, 90, 120, 150, 180, 240, 300, 600, 900, 1800},
		StabilityLevel: metrics.ALPHA})
	recommenderLatency = latency("vpa_recommender")

	updaterLatency = latency("vpa_updater")
	controlledPods = gauges("vpa_updater", "controlled_pods_total", "Number of Pods controlled by VPA updater.",
		"vpa_size_log2", "update_mode")
	evictablePods = gauges("vpa_updater", "evictable_pods_total", "Number of Pods matching eviction criteria.",
		"vpa_size_log2", "update_mode")
	updatablePods = gauges("vpa_updater", "in_place_updatable_pods_total",
		"Number of Pods matching in place update criteria.", "vpa_size_log2")
	evictedPods = counters("vpa_updater", "evicted_pods_total",
		"Number of Pods evicted by Updater to apply a new recommendation.", "vpa_size_log2", "update_mode", "vpa_name",
		"vpa_namespace")
	failedEvictions = counters("vpa_updater", "failed_eviction_attempts_total",
		"Number of failed attempts to update Pods by eviction", "vpa_size_log2", "update_mode", "reason", "vpa_name",
		"vpa_namespace")
	resizedPods = counters("vpa_updater", "in_place_updated_pods_total",
		"Number of Pods updated in-place by Updater to apply a new recommendation.", "vpa_size_log2", "vpa_name",
		"vpa_namespace")
	failedResizes = counters("vpa_updater", "failed_in_place_update_attempts_total",
		"Number of failed attempts to update Pods in-place.", "vpa_size_log2", "reason", "vpa_name", "vpa_namespace")

	admittedPods = counters("vpa_admission_controller", "admission_pods_total",
		"Number of Pods processed by VPA Admission Controller.", "applied")
	admissionLatency = metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: "vpa_admission_controller",
		Name: "admission_latency_seconds", Help: "Time spent in VPA Admission Controller.",
		Buckets: []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10}, StabilityLevel: metrics.ALPHA},
		[]string{"status", "resource"})
)

var register = sync.OnceFunc(func() {
	legacyregistry.MustRegister(usageCount, objectCount, recommendationLatency, recommenderLatency, updaterLatency,
		controlledPods, evictablePods, updatablePods, evictedPods, failedEvictions, resizedPods, failedResizes,
		admittedPods, admissionLatency)
})

func gauge(part, name, help string) *metrics.Gauge {
	return metrics.NewGauge(&metrics.GaugeOpts{Subsystem: part, Name: name, Help: help,
		StabilityLevel: metrics.ALPHA})
}

func gauges(part, name, help string, labels ...string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: part, Name: name, Help: help,
		StabilityLevel: metrics.ALPHA}, labels)
}

func counters(part, name, help string, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: part, Name: name, Help: help,
		StabilityLevel: metrics.ALPHA}, labels)
}

func latency(part string) *metrics.HistogramVec {
	return metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: part, Name: "execution_latency_seconds",
		Help:           "Time spent in various parts of VPA " + part[len("vpa_"):] + " main loop.",
		Buckets:        []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300},
		StabilityLevel: metrics.ALPHA}, []string{"step"})
}

// stopwatch observes the duration of each step of a pass.
type stopwatch struct {
	of          *metrics.HistogramVec
	began, last time.Time
}

func newStopwatch(of *metrics.HistogramVec) *stopwatch {
	now := time.Now()
	return &stopwatch{of, now, now}
}

func (s *stopwatch) step(name string) {
	now := time.Now()
	s.of.WithLabelValues(name).Observe(now.Sub(s.last).Seconds())
	s.last = now
}

func (s *stopwatch) total() { s.of.WithLabelValues("total").Observe(time.Since(s.began).Seconds()) }

// countVPAs counts the autoscalers by their state.
func countVPAs(all []*vpa.VerticalPodAutoscaler) {
	objectCount.Reset()
	for _, v := range all {
		is := map[string]bool{}
		for _, c := range v.Status.Conditions {
			is[c.Type] = c.Status == corev1.ConditionTrue
		}
		objectCount.WithLabelValues(string(v.Mode()), strconv.FormatBool(v.Status.Recommendation != nil &&
			len(v.Status.Recommendation.Containers) > 0), vpa.Version, strconv.FormatBool(!is[vpa.NoPodsMatched]),
			strconv.FormatBool(is[vpa.ConfigUnsupported])).Add(1)
	}
}

// updateCounts counts the pods of one autoscaler by the result of an update.
type updateCounts struct{ size, mode, name, namespace string }

func resetUpdateCounts() {
	for _, g := range []*metrics.GaugeVec{controlledPods, evictablePods, updatablePods} {
		g.Reset()
	}
}

func newUpdateCounts(v *vpa.VerticalPodAutoscaler, pods, candidates int) updateCounts {
	size := 0
	if pods > 0 {
		size = min(int(math.Log2(float64(pods))), 20)
	}
	c := updateCounts{strconv.Itoa(size), string(v.Mode()), v.Name, v.Namespace}
	controlledPods.WithLabelValues(c.size, c.mode).Add(float64(pods))
	if v.Mode() == vpa.ModeInPlaceOrRecreate {
		updatablePods.WithLabelValues(c.size).Add(float64(candidates))
	} else {
		evictablePods.WithLabelValues(c.size, c.mode).Add(float64(candidates))
	}
	return c
}

func (c updateCounts) resized() { resizedPods.WithLabelValues(c.size, c.name, c.namespace).Inc() }
func (c updateCounts) evicted() {
	evictedPods.WithLabelValues(c.size, c.mode, c.name, c.namespace).Inc()
}
func (c updateCounts) failedResize() {
	failedResizes.WithLabelValues(c.size, "InPlaceUpdateError", c.name, c.namespace).Inc()
}
func (c updateCounts) failedEviction() {
	failedEvictions.WithLabelValues(c.size, c.mode, "EvictionError", c.name, c.namespace).Inc()
}

// admitted counts a created pod.
func admitted(began time.Time, applied bool) {
	admittedPods.WithLabelValues(strconv.FormatBool(applied)).Inc()
	status := "skipped"
	if applied {
		status = "applied"
	}
	admissionLatency.WithLabelValues(status, "Pod").Observe(time.Since(began).Seconds())
}
