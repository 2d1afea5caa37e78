package resources

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresources "k8s.io/component-helpers/resource"
)

// The values for a container without a request when nodes are scored, so that such pods are spread,
// too. They never count for fitting.
const (
	scoreMilliCPU = 100
	scoreMemory   = 200 << 20
)

// Requests returns the resources that the pod occupies on a node (L3.117i): the larger of its
// running containers and of any step of its initialization, plus overhead. A pod that is being
// resized occupies the largest of desired, allocated, and actual (L3.127a).
func Requests(pod *corev1.Pod) corev1.ResourceList {
	return podresources.PodRequests(pod, podresources.PodResourcesOptions{
		UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
	})
}

// SpecRequests returns the requests of the pod's spec, independent of its status; with overhead.
func SpecRequests(pod *corev1.Pod) corev1.ResourceList {
	return podresources.PodRequests(pod, podresources.PodResourcesOptions{})
}

// SpecLimits returns the pod's limit for each resource that has one; with overhead.
func SpecLimits(pod *corev1.Pod) corev1.ResourceList {
	return podresources.PodLimits(pod, podresources.PodResourcesOptions{})
}

// Demand holds the resources that one pod occupies on a node. It is computed once for a version of
// a pod and then only added and subtracted.
type Demand struct {
	Amount
	ScoreMilliCPU int64 // as MilliCPU, containers without a request counted as 100m
	ScoreMemory   int64 // as Memory, containers without a request counted as 200Mi
}

// DemandOf computes the demand of a pod.
func DemandOf(pod *corev1.Pod) Demand {
	d := Demand{Amount: AmountOf(Requests(pod))}
	d.ScoreMilliCPU, d.ScoreMemory = d.MilliCPU, d.Memory
	if withoutRequests(pod) {
		score := podresources.PodRequests(pod, podresources.PodResourcesOptions{
			UseStatusResources: true,
			InPlacePodLevelResourcesVerticalScalingEnabled: true,
			NonMissingContainerRequests: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(scoreMilliCPU, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(scoreMemory, resource.BinarySI),
			},
		})
		d.ScoreMilliCPU, d.ScoreMemory = score.Cpu().MilliValue(), score.Memory().Value()
	}
	return d
}

// withoutRequests reports whether a container has no cpu or memory request.
func withoutRequests(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			requests := list[i].Resources.Requests
			_, cpu := requests[corev1.ResourceCPU]
			_, memory := requests[corev1.ResourceMemory]
			if !cpu || !memory {
				return true
			}
		}
	}
	return false
}

// IsSidecar reports whether an init container is restartable and therefore runs beside the regular
// containers.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
