package aggregation

import (
	"sync"

	"k8s.io/component-base/metrics/legacyregistry"
	statusmetrics "k8s.io/kube-aggregator/pkg/controllers/status/metrics"
)

// availability counts the unavailable APIServices, for all servers in the process.
var availability = sync.OnceValue(func() *statusmetrics.Metrics {
	m := statusmetrics.New()
	if err := m.Register(legacyregistry.Register, legacyregistry.CustomRegister); err != nil {
		panic("aggregation: " + err.Error()) // the name is already registered
	}
	return m
})
