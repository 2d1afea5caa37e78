package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"carob/internal/core/resources"
)

// Equal reports whether two statuses are equal. It is fast for a status and its successor:
// podlife.Step shares what did not change.
func Equal(a, b *corev1.PodStatus) bool {
	return untouched(a, b) || equality.Semantic.DeepEqual(a, b)
}

// untouched reports whether two statuses have equal fields and equal pointers. If not, the statuses
// may still be equal.
func untouched(a, b *corev1.PodStatus) bool {
	return a.ObservedGeneration == b.ObservedGeneration && a.Phase == b.Phase && a.Reason == b.Reason &&
		a.Message == b.Message &&
		a.NominatedNodeName == b.NominatedNodeName && a.QOSClass == b.QOSClass && a.Resize == b.Resize &&
		a.StartTime == b.StartTime &&
		a.HostIP == b.HostIP && slices.Equal(a.HostIPs, b.HostIPs) && a.PodIP == b.PodIP &&
		slices.Equal(a.PodIPs, b.PodIPs) &&
		a.Resources == b.Resources && resources.SameList(a.AllocatedResources, b.AllocatedResources) &&
		a.ExtendedResourceClaimStatus == b.ExtendedResourceClaimStatus &&
		slices.Equal(a.ResourceClaimStatuses, b.ResourceClaimStatuses) &&
		len(a.NodeAllocatableResourceClaimStatuses)+len(b.NodeAllocatableResourceClaimStatuses)+len(a.VolumeHealth)+
			len(b.VolumeHealth) == 0 &&
		slices.Equal(a.Conditions, b.Conditions) &&
		slices.EqualFunc(a.ContainerStatuses, b.ContainerStatuses, untouchedContainer) &&
		slices.EqualFunc(a.InitContainerStatuses, b.InitContainerStatuses, untouchedContainer) &&
		slices.EqualFunc(a.EphemeralContainerStatuses, b.EphemeralContainerStatuses, untouchedContainer)
}

func untouchedContainer(a, b corev1.ContainerStatus) bool {
	return a.Name == b.Name && a.State == b.State && a.LastTerminationState == b.LastTerminationState &&
		a.Ready == b.Ready && a.Started == b.Started &&
		a.RestartCount == b.RestartCount && a.Image == b.Image && a.ImageID == b.ImageID &&
		a.ContainerID == b.ContainerID &&
		a.Resources == b.Resources && resources.SameList(a.AllocatedResources, b.AllocatedResources) &&
		slices.Equal(a.VolumeMounts, b.VolumeMounts) &&
		a.User == b.User && a.StopSignal == b.StopSignal &&
		len(a.AllocatedResourcesStatus)+len(b.AllocatedResourcesStatus) == 0
}
