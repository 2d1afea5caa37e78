package stream

import (
	"net/http"

	"k8s.io/component-base/metrics"
)

// slis counts the results of the checks of /healthz, with upstream's names (S12.7). They are those of this server:
// upstream's own variables have the results of the API server, which is in the same process.
type slis struct {
	registry metrics.KubeRegistry
	last     *metrics.GaugeVec
	all      *metrics.CounterVec
}

func newSLIs() *slis {
	s := &slis{
		registry: metrics.NewKubeRegistry(),
		last: metrics.NewGaugeVec(&metrics.GaugeOpts{Namespace: "kubernetes", Name: "healthcheck",
			Help:           "This metric records the result of a single healthcheck.",
			StabilityLevel: metrics.STABLE}, []string{"name", "type"}),
		all: metrics.NewCounterVec(&metrics.CounterOpts{Namespace: "kubernetes", Name: "healthchecks_total",
			Help:           "This metric records the results of all healthcheck.",
			StabilityLevel: metrics.STABLE}, []string{"name", "type", "status"}),
	}
	s.registry.MustRegister(s.last, s.all)
	_ = metrics.RegisterProcessStartTime(s.registry.Register) // without it, the page lacks one family
	return s
}

// add counts a result of a check.
func (s *slis) add(check string, err error) {
	healthy, status := 1.0, "success"
	if err != nil {
		healthy, status = 0, "error"
	}
	s.last.WithLabelValues(check, "healthz").Set(healthy)
	s.all.WithLabelValues(check, "healthz", status).Inc()
}

// handler serves the page. DELETE removes the counts.
func (s *slis) handler() http.Handler {
	return metrics.HandlerWithReset(s.registry, metrics.HandlerOpts{})
}
