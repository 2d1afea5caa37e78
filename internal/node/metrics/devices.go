package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"carob/internal/node/devices"
)

// deviceFamilies are those of device plugins (S8.65), of claims (S9.80) and of the pod resources API (S12.94).
type deviceFamilies struct {
	registered           *prometheus.CounterVec
	allocated            *prometheus.HistogramVec
	handled, driverCalls *prometheus.HistogramVec
	requests             *prometheus.CounterVec
	requestsOf, errorsOf map[string]*prometheus.CounterVec // by method
}

// draBuckets are upstream's, in seconds: calls end after 45.
var draBuckets = prometheus.ExponentialBucketsRange(.1, 40, 15)

// podResourcesVersion is the one version of the pod resources API that is served.
const podResourcesVersion = "v1"

func newDeviceFamilies(r prometheus.Registerer) deviceFamilies {
	count := func(name, help, label string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "kubelet", Name: name, Help: help},
			[]string{label})
		r.MustRegister(v)
		return v
	}
	spread := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		r.MustRegister(v)
		return v
	}
	f := deviceFamilies{
		registered: count("device_plugin_registration_total",
			"Cumulative number of device plugin registrations by resource.", "resource_name"),
		allocated: spread("kubelet_device_plugin_alloc_duration_seconds",
			"Duration in seconds of the allocations of a device plugin by resource.", prometheus.DefBuckets,
			"resource_name"),
		handled: spread("dra_operations_duration_seconds",
			"Duration in seconds of handling all claims of a pod that starts or ends, by operation and by whether it "+
				"failed.", draBuckets, "operation_name", "is_error"),
		driverCalls: spread("dra_grpc_operations_duration_seconds",
			"Duration in seconds of the gRPC calls of drivers of claims.", draBuckets, "driver_name", "method_name",
			"grpc_status_code"),
		requests: count("pod_resources_endpoint_requests_total",
			"Cumulative number of requests to the pod resources API.", "server_api_version"),
		requestsOf: map[string]*prometheus.CounterVec{}, errorsOf: map[string]*prometheus.CounterVec{},
	}
	for method, name := range map[string]string{"List": "list", "Get": "get",
		"GetAllocatableResources": "get_allocatable"} {
		f.requestsOf[method] = count("pod_resources_endpoint_requests_"+name,
			"Number of requests to "+method+" of the pod resources API.", "server_api_version")
		f.errorsOf[method] = count("pod_resources_endpoint_errors_"+name,
			"Number of requests to "+method+" of the pod resources API that failed.", "server_api_version")
	}
	return f
}

var _ devices.Meter = (*Meter)(nil)

// Registered implements devices.Meter.
func (m *Meter) Registered(resource string) { m.devices.registered.WithLabelValues(resource).Inc() }

// Allocated implements devices.Meter.
func (m *Meter) Allocated(resource string, took time.Duration) {
	m.devices.allocated.WithLabelValues(resource).Observe(took.Seconds())
}

// DriverCalled implements devices.Meter.
func (m *Meter) DriverCalled(driver, method, code string, took time.Duration) {
	m.devices.driverCalls.WithLabelValues(driver, method, code).Observe(took.Seconds())
}

// ClaimsHandled implements devices.Meter.
func (m *Meter) ClaimsHandled(operation string, err error, took time.Duration) {
	m.devices.handled.WithLabelValues(operation, strconv.FormatBool(err != nil)).Observe(took.Seconds())
}

// PodResourcesServed implements devices.Meter.
func (m *Meter) PodResourcesServed(method string, err error) {
	requests := m.devices.requestsOf[method]
	if requests == nil {
		return // no method that has a family
	}
	m.devices.requests.WithLabelValues(podResourcesVersion).Inc()
	requests.WithLabelValues(podResourcesVersion).Inc()
	if err != nil {
		m.devices.errorsOf[method].WithLabelValues(podResourcesVersion).Inc()
	}
}

var claimsInUse = gauge("dra_resource_claims_in_use",
	"Number of claims that are in use on the node by driver; <any> counts each once, though it is of several drivers.",
	"driver_name")

// claims shows how many are in use.
func (c collector) claims(set func(d *prometheus.Desc, value float64, labels ...string)) {
	byDriver, all := c.facts.Claims()
	for driver, n := range byDriver {
		set(claimsInUse, float64(n), driver)
	}
	set(claimsInUse, float64(all), "<any>")
}
