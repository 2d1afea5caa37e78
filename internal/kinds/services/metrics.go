package services

import (
	"context"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The metric families are kube-apiserver's.
var (
	addressesUsed = metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: "kube_apiserver_clusterip_allocator",
		Name: "allocated_ips",
		Help: "Gauge measuring the number of allocated IPs for Services", StabilityLevel: metrics.ALPHA},
		[]string{"cidr"})
	addressesLeft = metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: "kube_apiserver_clusterip_allocator",
		Name: "available_ips",
		Help: "Gauge measuring the number of available IPs for Services", StabilityLevel: metrics.ALPHA},
		[]string{"cidr"})
	addressesTaken = metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: "kube_apiserver_clusterip_allocator",
		Name: "allocation_total",
		Help: "Number of Cluster IPs allocations", StabilityLevel: metrics.ALPHA}, []string{"cidr", "scope"})
	addressesRefused = metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: "kube_apiserver_clusterip_allocator",
		Name: "allocation_errors_total",
		Help: "Number of errors trying to allocate Cluster IPs", StabilityLevel: metrics.ALPHA},
		[]string{"cidr", "scope"})
	addressSeconds = metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: "kube_apiserver_clusterip_allocator",
		Name: "allocation_duration_seconds",
		Help: "Duration in seconds to allocate a Cluster IP by ServiceCIDR", Buckets: metrics.DefBuckets,
		StabilityLevel: metrics.ALPHA}, []string{"cidr"})

	portsUsed = metrics.NewGauge(&metrics.GaugeOpts{Subsystem: "kube_apiserver_nodeport_allocator",
		Name: "allocated_ports",
		Help: "Gauge measuring the number of allocated NodePorts for Services", StabilityLevel: metrics.ALPHA})
	portsLeft = metrics.NewGauge(&metrics.GaugeOpts{Subsystem: "kube_apiserver_nodeport_allocator",
		Name: "available_ports",
		Help: "Gauge measuring the number of available NodePorts for Services", StabilityLevel: metrics.ALPHA})
	portsTaken = metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: "kube_apiserver_nodeport_allocator",
		Name: "allocation_total",
		Help: "Number of NodePort allocations", StabilityLevel: metrics.ALPHA}, []string{"scope"})
	portsRefused = metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: "kube_apiserver_nodeport_allocator",
		Name: "allocation_errors_total",
		Help: "Number of errors trying to allocate NodePort", StabilityLevel: metrics.ALPHA}, []string{"scope"})
)

var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(addressesUsed, addressesLeft, addressesTaken, addressesRefused, addressSeconds,
		portsUsed, portsLeft, portsTaken, portsRefused)
})

// How an address or a port was chosen: by the client, or by the allocator.
const (
	static  = "static"
	dynamic = "dynamic"
)

// claimed counts an allocation of an address in a range, successful or not.
func claimed(r addresses, scope string, err error) {
	count := addressesTaken
	if err != nil {
		count = addressesRefused
	}
	count.WithLabelValues(r.prefix.String(), scope).Inc()
}

// claimed counts an allocation of a port, successful or not.
func (c *portClaim) claimed(scope string, err error) {
	switch {
	case c.dry:
	case err != nil:
		portsRefused.WithLabelValues(scope).Inc()
	default:
		portsTaken.WithLabelValues(scope).Inc()
	}
}

// Measure updates the gauges of usage. Deleted ranges are removed; one that cannot be read keeps
// its last value.
func (a *Allocator) Measure(ctx context.Context) {
	used, err := a.store().used(ctx)
	if err != nil {
		return
	}
	var ranges []addresses
	for _, f := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		of, err := a.store().ranges(ctx, f)
		if err != nil {
			return
		}
		ranges = append(ranges, of...)
	}
	addressesUsed.Reset()
	addressesLeft.Reset()
	for _, r := range ranges {
		n := uint64(0)
		for ip := range used {
			if r.has(ip) {
				n++
			}
		}
		addressesUsed.WithLabelValues(r.prefix.String()).Set(float64(n))
		addressesLeft.WithLabelValues(r.prefix.String()).Set(float64(r.size - min(n, r.size)))
	}
	a.ports.mu.Lock()
	n := len(a.ports.used)
	a.ports.mu.Unlock()
	portsUsed.Set(float64(n))
	portsLeft.Set(float64(a.ports.high - a.ports.low + 1 - n))
}

// rangeWith returns the range that contains an address.
func rangeWith(ranges []addresses, ip netip.Addr) (addresses, bool) {
	for _, r := range ranges {
		if r.has(ip) {
			return r, true
		}
	}
	return addresses{}, false
}
