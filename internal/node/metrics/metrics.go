// Package metrics counts what the node agent does, in families with the names and labels of the kubelet's, so that
// dashboards and alerts for the kubelet work. Wrappers around the runtime, the executor and the writer of statuses
// count events when they happen; the current state is read when the metrics are requested. There is no timer. The
// package decides nothing, and its wrappers do not change results.
//
// Contract: docs/spec/storage-and-node.md.
package metrics

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/podlife"
)

// Meter holds the families. It is safe for concurrent use.
type Meter struct {
	kubelet, probes *prometheus.Registry

	operations, operationErrors          *prometheus.CounterVec
	operationTime                        *prometheus.HistogramVec
	sandboxTime                          *prometheus.HistogramVec
	sandboxErrors                        *prometheus.CounterVec
	podsStarted, podsFailed              prometheus.Counter
	userNSPodsStarted, userNSPodsFailed  prometheus.Counter
	containersStarted, containersFailed  *prometheus.CounterVec
	containersEnded                      *prometheus.CounterVec
	podStart, podStartTotal, podStartSLI prometheus.Histogram
	imagePull, pluginTime                *prometheus.HistogramVec
	pluginErrors                         *prometheus.CounterVec
	imagesCollected                      *prometheus.CounterVec
	cgroupTime                           *prometheus.HistogramVec
	relistTime, relistInterval           prometheus.Histogram
	evictions, preemptions, notAdmitted  *prometheus.CounterVec
	probeTotal                           *prometheus.CounterVec
	probeTime                            *prometheus.HistogramVec
	storage                              storage
	devices                              deviceFamilies
	pinning                              pinningFamilies

	mu       sync.Mutex
	pods     map[types.UID]*podCounts
	relisted time.Time // begin of the last list
}

// podCounts is what was counted of a pod already.
type podCounts struct {
	seen  time.Time         // when it was first seen
	runs  bool              // its start was counted, or it ran before
	ended map[string]string // container to the id of its last instance whose end was counted

	pulls     int // that run now
	pullsFrom time.Time
	pulled    time.Duration // while at least one pull ran
}

// Buckets of upstream's families, in seconds.
var (
	startBuckets = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200,
		1800, 2700, 3600}
	pullBuckets = []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	callBuckets = prometheus.ExponentialBuckets(.005, 2.5, 14)
)

// New returns a Meter.
func New() *Meter {
	m := &Meter{kubelet: prometheus.NewRegistry(), probes: prometheus.NewRegistry(), pods: map[types.UID]*podCounts{}}
	count := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "kubelet", Name: name, Help: help}, labels)
		m.kubelet.MustRegister(v)
		return v
	}
	spread := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "kubelet", Name: name, Help: help,
			Buckets: buckets}, labels)
		m.kubelet.MustRegister(v)
		return v
	}
	one := func(v *prometheus.HistogramVec) prometheus.Histogram {
		return v.WithLabelValues().(prometheus.Histogram)
	}
	m.operations = count("runtime_operations_total", "Cumulative number of runtime operations by operation type.",
		"operation_type")
	m.operationErrors = count("runtime_operations_errors_total",
		"Cumulative number of runtime operation errors by operation type.", "operation_type")
	m.operationTime = spread("runtime_operations_duration_seconds",
		"Duration in seconds of runtime operations by operation type.", callBuckets, "operation_type")
	m.sandboxTime = spread("run_podsandbox_duration_seconds",
		"Duration in seconds of making sandboxes by runtime handler.", prometheus.DefBuckets, "runtime_handler")
	m.sandboxErrors = count("run_podsandbox_errors_total",
		"Cumulative number of sandboxes that could not be made by runtime handler.", "runtime_handler")
	m.podsStarted = count("started_pods_total", "Cumulative number of pods started.").WithLabelValues()
	m.podsFailed = count("started_pods_errors_total",
		"Cumulative number of errors when starting pods.").WithLabelValues()
	m.userNSPodsStarted = count("started_user_namespaced_pods_total",
		"Cumulative number of pods with user namespaces started.").WithLabelValues()
	m.userNSPodsFailed = count("started_user_namespaced_pods_errors_total",
		"Cumulative number of errors when starting pods with user namespaces.").WithLabelValues()
	m.containersStarted = count("started_containers_total", "Cumulative number of containers started.",
		"container_type")
	m.containersFailed = count("started_containers_errors_total",
		"Cumulative number of errors when starting containers.", "container_type", "code")
	m.containersEnded = count("terminated_containers_total", "Cumulative number of container terminations.",
		"container_type", "exit_code", "reason")
	m.podStart = one(spread("pod_start_duration_seconds",
		"Duration in seconds from the agent seeing a pod for the first time to the pod starting to run.", startBuckets))
	m.podStartSLI = one(spread("pod_start_sli_duration_seconds",
		"Duration in seconds to start a pod since its creation, without pulls of images and init containers.",
		startBuckets))
	m.podStartTotal = one(spread("pod_start_total_duration_seconds",
		"Duration in seconds to start a pod since its creation, with the time to pull images and run init containers.",
		startBuckets))
	m.imagePull = spread("image_pull_duration_seconds", "Duration in seconds to pull an image.", pullBuckets,
		"image_size_in_bytes")
	m.imagesCollected = count("image_garbage_collected_total", "Total number of unused images that were removed.",
		"reason")
	m.cgroupTime = spread("cgroup_manager_duration_seconds",
		"Duration in seconds of operations on the cgroups of pods by method.", prometheus.DefBuckets, "operation_type")
	m.relistTime = one(spread("pleg_relist_duration_seconds", "Duration in seconds for listing what the runtime has.",
		prometheus.DefBuckets))
	m.relistInterval = one(spread("pleg_relist_interval_seconds", "Interval in seconds between such lists.",
		prometheus.DefBuckets))
	m.pluginTime = spread("credential_provider_plugin_duration",
		"Duration in seconds of runs of a credential provider plugin.", prometheus.DefBuckets, "plugin_name")
	m.pluginErrors = count("credential_provider_plugin_errors_total",
		"Cumulative number of runs of a credential provider plugin that failed.", "plugin_name")
	m.evictions = count("evictions", "Cumulative number of pod evictions by eviction signal.", "eviction_signal")
	m.preemptions = count("preemptions",
		"Cumulative number of pods that ended for a critical one, by the resource that was short.", "preemption_signal")
	m.notAdmitted = count("admission_rejections_total", "Cumulative number of pods that the node refused, by reason.",
		"reason")

	m.storage, m.devices = newStorage(m.kubelet), newDeviceFamilies(m.kubelet)
	m.pinning = newPinningFamilies(m.kubelet)
	m.probeTotal = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prober_probe_total",
		Help: "Cumulative number of a liveness, readiness or startup probe for a container by result."},
		[]string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"})
	m.probeTime = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "prober_probe_duration_seconds",
		Help:    "Duration in seconds for a probe response.",
		Buckets: prometheus.DefBuckets}, []string{"probe_type", "container", "pod", "namespace"})
	m.probes.MustRegister(m.probeTotal, m.probeTime)
	return m
}

// Show adds the families that are made from facts when the Meter is read. It is called once.
func (m *Meter) Show(facts Facts) { m.kubelet.MustRegister(collector{facts}) }

// Handler serves the metrics of the agent and those of the process.
func (m *Meter) Handler(process prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{process, m.kubelet},
		promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// Probes serves the families of /metrics/probes.
func (m *Meter) Probes() http.Handler { return promhttp.HandlerFor(m.probes, promhttp.HandlerOpts{}) }

// Relisted counts a list of all that the runtime has.
func (m *Meter) Relisted(began time.Time, took time.Duration) {
	m.relistTime.Observe(took.Seconds())
	m.mu.Lock()
	last := m.relisted
	m.relisted = began
	m.mu.Unlock()
	if !last.IsZero() {
		m.relistInterval.Observe(began.Sub(last).Seconds())
	}
}

// PluginRun counts a run of a credential provider plugin (S13.12).
func (m *Meter) PluginRun(name string, took time.Duration, failed bool) {
	m.pluginTime.WithLabelValues(name).Observe(took.Seconds())
	if failed {
		m.pluginErrors.WithLabelValues(name).Inc()
	}
}

// Collected counts an unused image that was removed, and why: space or age.
func (m *Meter) Collected(reason string) { m.imagesCollected.WithLabelValues(reason).Inc() }

// Evicted counts a pod that was evicted for a signal such as memory.available.
func (m *Meter) Evicted(signal string) { m.evictions.WithLabelValues(signal).Inc() }

// Refused counts a pod that the node did not admit.
func (m *Meter) Refused(reason string) { m.notAdmitted.WithLabelValues(reason).Inc() }

// Preempted counts pods that were ended to free resources for a critical one.
func (m *Meter) Preempted(short string, pods int) {
	m.preemptions.WithLabelValues(short).Add(float64(pods))
}

// containerType is the label of a container of a pod.
func containerType(pod *corev1.Pod, name string) string {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return "init_container"
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return "ephemeral_container"
		}
	}
	return "container"
}

// sizeBucket is the label of an image's size.
func sizeBucket(bytes int64) string {
	const mb, gb = 1 << 20, 1 << 30
	if bytes <= 0 {
		return "N/A"
	}
	for _, b := range []struct {
		up   int64
		name string
	}{
		{10 * mb, "0-10MB"}, {100 * mb, "10MB-100MB"}, {500 * mb, "100MB-500MB"}, {gb, "500MB-1GB"},
		{5 * gb, "1GB-5GB"},
		{10 * gb, "5GB-10GB"}, {20 * gb, "10GB-20GB"}, {30 * gb, "20GB-30GB"}, {40 * gb, "30GB-40GB"},
		{60 * gb, "40GB-60GB"}, {100 * gb, "60GB-100GB"},
	} {
		if bytes <= b.up {
			return b.name
		}
	}
	return "GT100GB"
}

// result is the label of a probe's verdict.
func result(v podlife.ProbeVerdict) string {
	switch v {
	case podlife.ProbeSuccess, podlife.ProbeWarning:
		return "successful"
	case podlife.ProbeFailure:
		return "failed"
	default:
		return "unknown"
	}
}
