package podclaims

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/resources"
)

// Classes finds the class that serves an extended resource (S9.60): the class that names it, of several the newest,
// or the class that is named in the resource itself. Nil if there is none.
func Classes(classes map[string]*resourcev1.DeviceClass) map[corev1.ResourceName]*resourcev1.DeviceClass {
	byResource := map[corev1.ResourceName]*resourcev1.DeviceClass{}
	for _, name := range slices.Sorted(maps.Keys(classes)) {
		c := classes[name]
		byResource[corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix+name)] = c
		if c.Spec.ExtendedResourceName == nil {
			continue
		}
		resource := corev1.ResourceName(*c.Spec.ExtendedResourceName)
		if other := byResource[resource]; other == nil || other.CreationTimestamp.Before(&c.CreationTimestamp) {
			byResource[resource] = c
		}
	}
	return byResource
}

// MayBeDevices reports whether a pod requests resources that a class may serve.
func MayBeDevices(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name, q := range list[i].Resources.Requests { // any order: only reads
				if IsDevice(name) && !q.IsZero() {
					return true
				}
			}
		}
	}
	return false
}

// IsDevice reports whether a resource name may stand for devices of a class.
func IsDevice(name corev1.ResourceName) bool {
	return resources.IsExtended(name) || strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix)
}

// ByClass returns the extended resources of a pod that a class serves, sorted; none if it requests
// none.
func ByClass(pod *corev1.Pod, class func(corev1.ResourceName) *resourcev1.DeviceClass) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name, q := range resources.SpecRequests(pod) { // any order: sorted below
		if !q.IsZero() && IsDevice(name) && class(name) != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Extended returns the claim for the extended resources of a pod that a node does not have itself, without a name,
// and which request serves which container (S9.61). names are in the order in which their requests are made.
func Extended(pod *corev1.Pod, names []corev1.ResourceName,
	class func(corev1.ResourceName) *resourcev1.DeviceClass) (*resourcev1.ResourceClaim,
	[]corev1.ContainerExtendedResourceRequest) {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, GenerateName: pod.Name + "-extended-resources-",
		Annotations: map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
			Controller: new(true)}},
	}}
	var mappings []corev1.ContainerExtendedResourceRequest
	for _, name := range names {
		requests, of := requestsOf(pod, name, class(name).Name)
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, requests...)
		mappings = append(mappings, of...)
	}
	slices.SortFunc(claim.Spec.Devices.Requests,
		func(a, b resourcev1.DeviceRequest) int { return cmp.Compare(a.Name, b.Name) })
	return claim, mappings
}

// requestsOf returns the requests for one resource. Init containers that end use the devices of the containers that
// start after them, and together one further request if that is not enough.
func requestsOf(pod *corev1.Pod, resource corev1.ResourceName, class string) ([]resourcev1.DeviceRequest,
	[]corev1.ContainerExtendedResourceRequest) {
	all := append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)
	ends := func(i int) bool { return i < len(pod.Spec.InitContainers) && !resources.IsSidecar(&all[i]) }
	own := make([]*resourcev1.DeviceRequest, len(all))
	var list []resourcev1.DeviceRequest
	var mappings, early []corev1.ContainerExtendedResourceRequest
	to := func(i int, request string) corev1.ContainerExtendedResourceRequest {
		return corev1.ContainerExtendedResourceRequest{ContainerName: all[i].Name, ResourceName: string(resource),
			RequestName: request}
	}
	for i := range all {
		if n := quantity(&all[i], resource); n > 0 && !ends(i) {
			own[i] = request(i, &all[i], resource, class, n)
			list = append(list, *own[i])
			mappings = append(mappings, to(i, own[i].Name))
		}
	}
	var more *resourcev1.DeviceRequest // of the init container that lacks most
	var short []int
	for i := range all {
		need := quantity(&all[i], resource)
		if need == 0 || !ends(i) {
			continue
		}
		for j := i; j < len(all) && need > 0; j++ {
			if own[j] != nil {
				early = append(early, to(i, own[j].Name))
				need -= own[j].Exactly.Count
			}
		}
		if need > 0 {
			short = append(short, i)
			if more == nil || more.Exactly.Count < need {
				more = request(i, &all[i], resource, class, need)
			}
		}
	}
	if more != nil {
		list = append(list, *more)
		for _, i := range short {
			early = append(early, to(i, more.Name))
		}
	}
	return list, append(mappings, early...)
}

func quantity(c *corev1.Container, resource corev1.ResourceName) int64 {
	q := c.Resources.Requests[resource]
	return q.Value()
}

// request is named after the index of the container and of the resource among the sorted ones of the container.
func request(i int, c *corev1.Container, resource corev1.ResourceName, class string,
	count int64) *resourcev1.DeviceRequest {
	index := slices.Index(slices.Sorted(maps.Keys(c.Resources.Requests)), resource)
	return &resourcev1.DeviceRequest{Name: fmt.Sprintf("container-%d-request-%d", i, index),
		Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class,
			AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count}}
}

// ServedByClaim reports whether a claim serves a container's extended resource, so that no device plugin does (S8.29).
func ServedByClaim(pod *corev1.Pod, container string, resource corev1.ResourceName) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == container && m.ResourceName == string(resource)
	})
}

// IsExtended reports whether a claim was made for the extended resources of this pod.
func IsExtended(pod *corev1.Pod, claim *resourcev1.ResourceClaim) bool {
	return claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" && OwnedBy(pod, claim)
}
