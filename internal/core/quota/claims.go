package quota

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	serviceKind     = schema.GroupResource{Resource: "services"}
	volumeClaimKind = schema.GroupResource{Resource: "persistentvolumeclaims"}
	deviceClaimKind = schema.GroupResource{Group: resourcev1.GroupName, Resource: "resourceclaims"}
)

// Names that count objects.
const (
	servicesCount     corev1.ResourceName = "count/services"
	volumeClaimsCount corev1.ResourceName = "count/persistentvolumeclaims"
	deviceClaimsCount corev1.ResourceName = "count/resourceclaims.resource.k8s.io"
)

func serviceRules() Kind {
	return Kind{
		Group:  serviceKind,
		counts: writes,
		concerns: func(n corev1.ResourceName) bool {
			switch n {
			case servicesCount, corev1.ResourceServices, corev1.ResourceServicesNodePorts,
				corev1.ResourceServicesLoadBalancers:
				return true
			}
			return false
		},
		usage: func(o runtime.Object, _ time.Time) (corev1.ResourceList, error) {
			s, ok := o.(*corev1.Service)
			if !ok {
				return nil, fmt.Errorf("expected a service, got %T", o)
			}
			return serviceUsage(s), nil
		},
	}
}

func serviceUsage(s *corev1.Service) corev1.ResourceList {
	out := corev1.ResourceList{servicesCount: count(1), corev1.ResourceServices: count(1),
		corev1.ResourceServicesNodePorts: count(0), corev1.ResourceServicesLoadBalancers: count(0)}
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		out[corev1.ResourceServicesNodePorts] = count(int64(len(s.Spec.Ports)))
	case corev1.ServiceTypeLoadBalancer:
		out[corev1.ResourceServicesLoadBalancers] = count(1)
		ports := 0
		wanted := s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts
		for _, p := range s.Spec.Ports {
			if wanted || p.NodePort != 0 {
				ports++
			}
		}
		out[corev1.ResourceServicesNodePorts] = count(int64(ports))
	}
	return out
}

const ofStorageClass = ".storageclass.storage.k8s.io/"

func volumeClaimRules() Kind {
	return Kind{
		Group:  volumeClaimKind,
		counts: func(w Write) bool { return writes(w) || w.Subresource == "status" && w.Update },
		concerns: func(n corev1.ResourceName) bool {
			switch n {
			case volumeClaimsCount, corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage:
				return true
			}
			s := string(n)
			return strings.HasSuffix(s, ofStorageClass+string(corev1.ResourcePersistentVolumeClaims)) ||
				strings.HasSuffix(s, ofStorageClass+string(corev1.ResourceRequestsStorage))
		},
		inScope: volumeClaimInScope,
		usage: func(o runtime.Object, _ time.Time) (corev1.ResourceList, error) {
			c, err := asVolumeClaim(o)
			if err != nil {
				return nil, err
			}
			return volumeClaimUsage(c), nil
		},
	}
}

func asVolumeClaim(o runtime.Object) (*corev1.PersistentVolumeClaim, error) {
	c, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil, fmt.Errorf("expected a persistent volume claim, got %T", o)
	}
	return c, nil
}

func volumeClaimUsage(c *corev1.PersistentVolumeClaim) corev1.ResourceList {
	out := corev1.ResourceList{volumeClaimsCount: count(1), corev1.ResourcePersistentVolumeClaims: count(1)}
	class, ok := c.Annotations[corev1.BetaStorageClassAnnotation]
	if !ok && c.Spec.StorageClassName != nil {
		class = *c.Spec.StorageClassName
	}
	if class != "" {
		out[corev1.ResourceName(class+ofStorageClass)+corev1.ResourcePersistentVolumeClaims] = count(1)
	}
	if size, ok := storage(c); ok {
		out[corev1.ResourceRequestsStorage] = size
		if class != "" {
			out[corev1.ResourceName(class+ofStorageClass)+corev1.ResourceRequestsStorage] = size
		}
	}
	return out
}

// storage returns the storage that a claim requests, or that a failed expansion has already
// allocated.
func storage(c *corev1.PersistentVolumeClaim) (resource.Quantity, bool) {
	size, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return size, false
	}
	if got, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok && got.Cmp(size) > 0 {
		size = got
	}
	size = size.DeepCopy()
	size.RoundUp(0)
	return size, true
}

// volumeClaimInScope: a claim is in the scope of each attributes class that it has or requests.
func volumeClaimInScope(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error) {
	c, err := asVolumeClaim(o)
	if err != nil || s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false, err
	}
	classes := map[string]bool{}
	for _, n := range []*string{c.Spec.VolumeAttributesClassName, c.Status.CurrentVolumeAttributesClassName} {
		if n != nil && *n != "" {
			classes[*n] = true
		}
	}
	if m := c.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		classes[m.TargetVolumeAttributesClassName] = true
	}
	if s.Operator == corev1.ScopeSelectorOpExists {
		return len(classes) > 0, nil
	}
	selector, err := asSelector(s)
	if err != nil {
		return false, err
	}
	if len(classes) == 0 {
		return selector.Matches(labels.Set{}), nil
	}
	for class := range classes { // any order: one is enough
		if selector.Matches(labels.Set{string(s.ScopeName): class}) {
			return true, nil
		}
	}
	return false, nil
}

func deviceClaimRules(look Lookup) Kind {
	return Kind{
		Group:  deviceClaimKind,
		counts: writes,
		concerns: func(n corev1.ResourceName) bool {
			return n == deviceClaimsCount || strings.HasSuffix(string(n), corev1.ResourceClaimsPerClass) ||
				isClassResource(look, string(n))
		},
		usage: func(o runtime.Object, now time.Time) (corev1.ResourceList, error) {
			c, ok := o.(*resourcev1.ResourceClaim)
			if !ok {
				return nil, fmt.Errorf("expected a resource claim, got %T", o)
			}
			used := deviceClaimUsage(c)
			if look != nil {
				if err := addExtended(look, c, used, now); err != nil {
					return nil, fmt.Errorf("count extended resources: %w", err)
				}
			}
			return used, nil
		},
	}
}

// deviceClaimUsage counts devices by class, for alternatives the largest number that could be
// allocated.
func deviceClaimUsage(c *resourcev1.ResourceClaim) corev1.ResourceList {
	out := corev1.ResourceList{deviceClaimsCount: count(1)}
	add := func(class string, n int64) {
		name := corev1.ResourceName(class + corev1.ResourceClaimsPerClass)
		q := out[name]
		q.Add(count(n))
		out[name] = q
	}
	devices := func(mode resourcev1.DeviceAllocationMode, n int64) int64 {
		switch mode {
		case resourcev1.DeviceAllocationModeExactCount:
			return n
		case resourcev1.DeviceAllocationModeAll:
			return resourcev1.AllocationResultsMaxSize
		}
		return 0
	}
	for _, r := range c.Spec.Devices.Requests {
		if r.Exactly != nil {
			add(r.Exactly.DeviceClassName, devices(r.Exactly.AllocationMode, r.Exactly.Count))
		}
		most := map[string]int64{}
		for _, s := range r.FirstAvailable {
			most[s.DeviceClassName] = max(most[s.DeviceClassName], devices(s.AllocationMode, s.Count))
		}
		for class, n := range most { // any order: sums
			add(class, n)
		}
	}
	return out
}
