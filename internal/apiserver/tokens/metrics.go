package tokens

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The metric families are kube-apiserver's.
var (
	cacheSeconds = metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: "authentication_token_cache",
		Name:           "request_duration_seconds",
		Help:           "Time to check a service account token, by whether its signature was cached.",
		StabilityLevel: metrics.ALPHA}, []string{"status"})
	cacheRequests = metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: "authentication_token_cache",
		Name: "request_total",
		Help: "Service account tokens checked, by whether their signature was cached.", StabilityLevel: metrics.ALPHA},
		[]string{"status"})
	cacheFetches = metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: "authentication_token_cache",
		Name: "fetch_total",
		Help: "Signatures of service account tokens verified, by outcome.", StabilityLevel: metrics.ALPHA},
		[]string{"status"})
	cacheFetching = metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: "authentication_token_cache",
		Name: "active_fetch_count",
		Help: "Signatures of service account tokens being verified.", StabilityLevel: metrics.ALPHA},
		[]string{"status"})

	legacyUsed = metrics.NewCounter(&metrics.CounterOpts{Subsystem: "serviceaccount", Name: "legacy_tokens_total",
		Help: "Cumulative legacy service account tokens used", StabilityLevel: metrics.BETA})
	staleUsed = metrics.NewCounter(&metrics.CounterOpts{Subsystem: "serviceaccount", Name: "stale_tokens_total",
		Help: "Cumulative stale projected service account tokens used", StabilityLevel: metrics.BETA})
	validUsed = metrics.NewCounter(&metrics.CounterOpts{Subsystem: "serviceaccount", Name: "valid_tokens_total",
		Help: "Cumulative valid projected service account tokens used", StabilityLevel: metrics.BETA})
	manualUsed = metrics.NewCounter(&metrics.CounterOpts{Subsystem: "serviceaccount",
		Name: "legacy_manual_token_uses_total",
		Help: "Cumulative manually created legacy tokens used", StabilityLevel: metrics.ALPHA})
	automaticUsed = metrics.NewCounter(&metrics.CounterOpts{Subsystem: "serviceaccount",
		Name: "legacy_auto_token_uses_total",
		Help: "Cumulative auto-generated legacy tokens used", StabilityLevel: metrics.ALPHA})
	invalidUsed = metrics.NewCounter(&metrics.CounterOpts{Subsystem: "serviceaccount",
		Name: "invalid_legacy_auto_token_uses_total",
		Help: "Cumulative invalid auto-generated legacy tokens used", StabilityLevel: metrics.ALPHA})
)

var register = sync.OnceFunc(func() {
	legacyregistry.MustRegister(cacheSeconds, cacheRequests, cacheFetches, cacheFetching, legacyUsed, staleUsed,
		validUsed, manualUsed, automaticUsed, invalidUsed)
})
