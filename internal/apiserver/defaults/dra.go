package defaults

import resourcev1 "k8s.io/api/resource/v1"

func deviceRequests(requests []resourcev1.DeviceRequest) {
	for i := range requests {
		r := &requests[i]
		if r.Exactly != nil {
			deviceCount(&r.Exactly.AllocationMode, &r.Exactly.Count)
			tolerations(r.Exactly.Tolerations)
		}
		for j := range r.FirstAvailable {
			sub := &r.FirstAvailable[j]
			deviceCount(&sub.AllocationMode, &sub.Count)
			tolerations(sub.Tolerations)
		}
	}
}

func deviceCount(mode *resourcev1.DeviceAllocationMode, n *int64) {
	orDefault(mode, resourcev1.DeviceAllocationModeExactCount)
	if *mode == resourcev1.DeviceAllocationModeExactCount {
		orDefault(n, 1)
	}
}

func tolerations(list []resourcev1.DeviceToleration) {
	for i := range list {
		orDefault(&list[i].Operator, resourcev1.DeviceTolerationOpEqual)
	}
}

func resourceClaim(c *resourcev1.ResourceClaim) {
	deviceRequests(c.Spec.Devices.Requests)
	if a := c.Status.Allocation; a != nil {
		for i := range a.Devices.Results {
			tolerations(a.Devices.Results[i].Tolerations)
		}
	}
}
