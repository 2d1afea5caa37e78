package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// S8.65, S9.80, S12.94: names and labels are the kubelet's.
func TestDevices(t *testing.T) {
	w := newWorld()
	w.Registered("example.com/gpu")
	w.Registered("example.com/gpu")
	w.Allocated("example.com/gpu", 2*time.Second)
	w.DriverCalled("gpu.example.com", "/v1.DRAPlugin/NodePrepareResources", "Unavailable", 3*time.Second)
	w.ClaimsHandled("PrepareResources", errors.New("no"), 45*time.Second)
	w.ClaimsHandled("UnprepareResources", nil, time.Second)
	w.PodResourcesServed("List", nil)
	w.PodResourcesServed("Get", errors.New("not found"))
	w.PodResourcesServed("GetAllocatableResources", nil)
	w.PodResourcesServed("Unknown", nil)
	w.expect(t,
		`kubelet_device_plugin_registration_total{resource_name="example.com/gpu"} 2`,
		`kubelet_device_plugin_alloc_duration_seconds_sum{resource_name="example.com/gpu"} 2`,
		`dra_grpc_operations_duration_seconds_sum{driver_name="gpu.example.com",grpc_status_code="Unavailable",`+
			`method_name="/v1.DRAPlugin/NodePrepareResources"} 3`,
		`dra_operations_duration_seconds_sum{is_error="true",operation_name="PrepareResources"} 45`,
		`dra_operations_duration_seconds_sum{is_error="false",operation_name="UnprepareResources"} 1`,
		`kubelet_pod_resources_endpoint_requests_total{server_api_version="v1"} 3`,
		`kubelet_pod_resources_endpoint_requests_list{server_api_version="v1"} 1`,
		`kubelet_pod_resources_endpoint_requests_get{server_api_version="v1"} 1`,
		`kubelet_pod_resources_endpoint_requests_get_allocatable{server_api_version="v1"} 1`,
		`kubelet_pod_resources_endpoint_errors_get{server_api_version="v1"} 1`,
	)
	if text := w.text(t); strings.Contains(text, "endpoint_errors_list{") {
		t.Error("a request that worked counts as failed")
	}
}
