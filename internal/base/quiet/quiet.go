// Package quiet keeps Kubernetes' work queues from waking an idle process. Whoever
// imports it gets that; it must never be needed for anything to work.
package quiet

import (
	_ "unsafe" // go:linkname

	"k8s.io/client-go/util/workqueue"
)

// withoutMetrics is what work queues have unless somebody gives them a provider.
//
//go:linkname withoutMetrics k8s.io/client-go/util/workqueue.globalMetricsProvider
var withoutMetrics workqueue.MetricsProvider

// A queue with a name measures its oldest work twice a second when there is a
// provider, and k8s.io/component-base gives one. Only the first counts; Go
// initialises in the order of import paths what has nothing left to wait for.
func init() { workqueue.SetProvider(withoutMetrics) }
