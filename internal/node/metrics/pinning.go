package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"carob/internal/node/pinning"
)

// pinningFamilies are those of the CPU, memory and topology managers (S10.40).
type pinningFamilies struct {
	cpuRequests, cpuErrors, memoryRequests, memoryErrors prometheus.Counter
	topologyRequests, topologyErrors                     prometheus.Counter
	topologyTime                                         prometheus.Histogram
}

func newPinningFamilies(r prometheus.Registerer) pinningFamilies {
	count := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "kubelet", Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	f := pinningFamilies{
		cpuRequests: count("cpu_manager_pinning_requests_total",
			"Number of pods with containers that requested exclusive CPUs."),
		cpuErrors: count("cpu_manager_pinning_errors_total", "Number of pods that did not get CPUs of their own."),
		memoryRequests: count("memory_manager_pinning_requests_total",
			"Number of pods with containers that requested memory of NUMA nodes."),
		memoryErrors: count("memory_manager_pinning_errors_total",
			"Number of pods that did not get memory of NUMA nodes."),
		topologyRequests: count("topology_manager_admission_requests_total",
			"Number of pods whose resources were to be aligned."),
		topologyErrors: count("topology_manager_admission_errors_total",
			"Number of pods whose resources could not be aligned."),
		topologyTime: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "kubelet",
			Name: "topology_manager_admission_duration_ms", Help: "Duration in milliseconds of aligning a pod's resources.",
			Buckets: prometheus.ExponentialBuckets(.05, 2, 15)}),
	}
	r.MustRegister(f.topologyTime)
	return f
}

var _ pinning.Meter = (*Meter)(nil)

// PinningAdmitted implements pinning.Meter.
func (m *Meter) PinningAdmitted(cpus, memory, topology bool, refused string, took time.Duration) {
	f := &m.pinning
	add := func(counted bool, requests, errors prometheus.Counter) {
		if counted {
			requests.Inc()
			if refused != "" {
				errors.Inc()
			}
		}
	}
	add(cpus, f.cpuRequests, f.cpuErrors)
	add(memory, f.memoryRequests, f.memoryErrors)
	add(topology, f.topologyRequests, f.topologyErrors)
	if topology {
		f.topologyTime.Observe(float64(took.Microseconds()) / 1000)
	}
}

// ShowPinning adds the families that show which CPUs and memory containers have. They are computed when they are read.
func (m *Meter) ShowPinning(of func() pinning.Usage) { m.kubelet.MustRegister(pinningUsage(of)) }

// pinningUsage is a collector of what is in use.
type pinningUsage func() pinning.Usage

func pinningDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kubelet_cpu_manager_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (pinningUsage) Describe(to chan<- *prometheus.Desc) {
	to <- pinningDesc("shared_pool_size_millicores", "CPUs that containers without CPUs of their own share.")
	to <- pinningDesc("exclusive_cpu_allocation_count", "CPUs that belong to one container.")
	to <- pinningDesc("allocation_per_numa", "CPUs of each NUMA node that belong to one container.", "numa_node")
}

// Collect implements prometheus.Collector.
func (p pinningUsage) Collect(to chan<- prometheus.Metric) {
	u := p()
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	gauge(pinningDesc("shared_pool_size_millicores", "CPUs that containers without CPUs of their own share."),
		u.Shared*1000)
	gauge(pinningDesc("exclusive_cpu_allocation_count", "CPUs that belong to one container."), u.Own)
	for node, n := range u.ByNode { // any order: they are sorted when they are read
		gauge(pinningDesc("allocation_per_numa", "CPUs of each NUMA node that belong to one container.", "numa_node"), n,
			strconv.Itoa(node))
	}
}
