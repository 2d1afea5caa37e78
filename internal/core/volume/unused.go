package volume

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HasUnused reports whether a claim has the condition Unused: it is bound, and not being deleted (S7.10).
func HasUnused(c *corev1.PersistentVolumeClaim) bool {
	return c.Status.Phase == corev1.ClaimBound && c.DeletionTimestamp == nil
}

// Unused returns a claim whose condition Unused shows at a time whether a pod uses the claim; nil if it does already
// (S7.10).
func Unused(c *corev1.PersistentVolumeClaim, used bool, now metav1.Time) *corev1.PersistentVolumeClaim {
	want := corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimUnused,
		Status: corev1.ConditionTrue, LastTransitionTime: now,
		Reason: "NoPodsUsingPVC", Message: "No pods are currently referencing this PVC"}
	if used {
		want.Status, want.Reason = corev1.ConditionFalse, "PodUsingPVC"
		want.Message = "A pod is currently referencing this PVC"
	}
	i := slices.IndexFunc(c.Status.Conditions, func(o corev1.PersistentVolumeClaimCondition) bool {
		return o.Type == want.Type
	})
	switch {
	case !HasUnused(c), i >= 0 && c.Status.Conditions[i].Status == want.Status:
		return nil
	}
	c = c.DeepCopy()
	if i < 0 {
		c.Status.Conditions = append(c.Status.Conditions, want)
	} else {
		c.Status.Conditions[i] = want
	}
	return c
}

// Terminated reports whether the containers of a pod have ended for good: it has ended, or it is being deleted and none
// of them runs.
func Terminated(pod *corev1.Pod) bool {
	ended := func(list []corev1.ContainerStatus) bool {
		return !slices.ContainsFunc(list, func(s corev1.ContainerStatus) bool {
			return s.State.Terminated == nil && s.State.Waiting == nil
		})
	}
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded ||
		pod.DeletionTimestamp != nil && ended(pod.Status.InitContainerStatuses) &&
			ended(pod.Status.ContainerStatuses) && ended(pod.Status.EphemeralContainerStatuses)
}
