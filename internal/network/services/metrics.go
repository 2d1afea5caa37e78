package services

import (
	"sync"
	"time"

	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// metrics are figures under kube-proxy's names (N9.A).
type metrics struct {
	syncs, whole, partial, programming *k8smetrics.HistogramVec
	last, queued, noLocal              *k8smetrics.GaugeVec
	failed                             *k8smetrics.CounterVec
	services, endpoints                *k8smetrics.GaugeVec
	conntrack                          *k8smetrics.HistogramVec
	forgotten                          *k8smetrics.CounterVec
	healthz, livez                     *k8smetrics.CounterVec
}

// newMetrics registers the figures once for the process.
var newMetrics = sync.OnceValue(func() *metrics {
	const subsystem = "kubeproxy"
	family := []string{"ip_family"}
	times := func(name, help string, buckets []float64) *k8smetrics.HistogramVec {
		return k8smetrics.NewHistogramVec(&k8smetrics.HistogramOpts{Subsystem: subsystem, Name: name, Help: help,
			Buckets: buckets, StabilityLevel: k8smetrics.ALPHA}, family)
	}
	gauge := func(name, help string, labels ...string) *k8smetrics.GaugeVec {
		return k8smetrics.NewGaugeVec(&k8smetrics.GaugeOpts{Subsystem: subsystem, Name: name, Help: help,
			StabilityLevel: k8smetrics.ALPHA}, append(labels, family...))
	}
	count := func(name, help string) *k8smetrics.CounterVec {
		return k8smetrics.NewCounterVec(&k8smetrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help,
			StabilityLevel: k8smetrics.ALPHA}, family)
	}
	answers := func(name, help string) *k8smetrics.CounterVec {
		return k8smetrics.NewCounterVec(&k8smetrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help,
			StabilityLevel: k8smetrics.ALPHA}, []string{"code"})
	}
	short := k8smetrics.ExponentialBuckets(0.001, 2, 15)
	long := append([]float64{0.25, 0.5}, k8smetrics.LinearBuckets(1, 1, 59)...)
	long = append(append(long, k8smetrics.LinearBuckets(60, 5, 12)...), k8smetrics.LinearBuckets(120, 30, 7)...)
	m := &metrics{
		syncs: times("sync_proxy_rules_duration_seconds", "How long writing the rules of Services took", short),
		whole: times("sync_full_proxy_rules_duration_seconds",
			"How long writes took that compared the whole table", short),
		partial: times("sync_partial_proxy_rules_duration_seconds", "How long writes of differences took", short),
		programming: times("network_programming_duration_seconds",
			"Time from a change of a pod or Service until the rules contain it", long),
		last:   gauge("sync_proxy_rules_last_timestamp_seconds", "When the rules were last written"),
		queued: gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When a write of the rules was last requested"),
		noLocal: gauge("sync_proxy_rules_no_local_endpoints_total",
			"Service ports with a Local policy whose endpoints are all on other nodes", "traffic_policy"),
		failed:    count("sync_proxy_rules_nftables_sync_failures_total", "Transactions that the kernel refused"),
		services:  gauge("carob_services", "Services in the tables"),
		endpoints: gauge("carob_endpoints", "Endpoints in the tables, once for each list"),
		conntrack: times("conntrack_reconciler_sync_duration_seconds", "How long forgetting flows of UDP took", short),
		forgotten: count("conntrack_reconciler_deleted_entries_total", "UDP flows deleted from connection tracking"),
		healthz:   answers("proxy_healthz_total", "Answers of /healthz by status code"),
		livez:     answers("proxy_livez_total", "Answers of /livez by status code"),
	}
	legacyregistry.MustRegister(m.syncs, m.whole, m.partial, m.programming, m.last, m.queued, m.noLocal, m.failed,
		m.services, m.endpoints, m.conntrack, m.forgotten, m.healthz, m.livez)
	return m
})

// synced records a write of all tables; the caller holds no lock.
func (m *metrics) synced(p *Proxy, in []input, start time.Time, whole bool, err error) {
	end := time.Now()
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, pl := range p.planes {
		family := pl.name()
		m.queued.WithLabelValues(family).Set(seconds(start))
		if err != nil {
			continue
		}
		took := end.Sub(start).Seconds()
		m.syncs.WithLabelValues(family).Observe(took)
		if whole {
			m.whole.WithLabelValues(family).Observe(took)
		} else {
			m.partial.WithLabelValues(family).Observe(took)
		}
		m.last.WithLabelValues(family).Set(seconds(end))
		for _, i := range in {
			for _, t := range i.triggered {
				m.programming.WithLabelValues(family).Observe(end.Sub(t).Seconds())
			}
		}
		inside, outside := pl.state.NoLocalEndpoints()
		m.noLocal.WithLabelValues("internal", family).Set(float64(inside))
		m.noLocal.WithLabelValues("external", family).Set(float64(outside))
		services, endpoints := pl.state.Len()
		m.services.WithLabelValues(family).Set(float64(services))
		m.endpoints.WithLabelValues(family).Set(float64(endpoints))
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

func (m *metrics) failures(family string, err error) {
	if err != nil {
		m.failed.WithLabelValues(family).Inc()
	}
}
