package devices

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/defaulting"
)

// RegisterDefaults adds the defaults of this package's kinds to s.
func RegisterDefaults(s *runtime.Scheme) {
	defaulting.Add(s, defaultResourceClaim)
	defaulting.Add(s, func(o *resourcev1.ResourceClaimTemplate) { defaultDeviceRequests(o.Spec.Spec.Devices.Requests) })
}

func defaultDeviceRequests(requests []resourcev1.DeviceRequest) {
	for i := range requests {
		r := &requests[i]
		if r.Exactly != nil {
			defaultDeviceCount(&r.Exactly.AllocationMode, &r.Exactly.Count)
			defaultTolerations(r.Exactly.Tolerations)
		}
		for j := range r.FirstAvailable {
			sub := &r.FirstAvailable[j]
			defaultDeviceCount(&sub.AllocationMode, &sub.Count)
			defaultTolerations(sub.Tolerations)
		}
	}
}

func defaultDeviceCount(mode *resourcev1.DeviceAllocationMode, n *int64) {
	defaulting.OrDefault(mode, resourcev1.DeviceAllocationModeExactCount)
	if *mode == resourcev1.DeviceAllocationModeExactCount {
		defaulting.OrDefault(n, 1)
	}
}

func defaultTolerations(list []resourcev1.DeviceToleration) {
	for i := range list {
		defaulting.OrDefault(&list[i].Operator, resourcev1.DeviceTolerationOpEqual)
	}
}

func defaultResourceClaim(c *resourcev1.ResourceClaim) {
	defaultDeviceRequests(c.Spec.Devices.Requests)
	if a := c.Status.Allocation; a != nil {
		for i := range a.Devices.Results {
			defaultTolerations(a.Devices.Results[i].Tolerations)
		}
	}
}
