package eviction

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/core/resources"
)

// HasLocalLimit reports whether the pod has a limit on its local storage for which it may be evicted. Critical pods are
// not: a static pod would not come back (L7.148).
func HasLocalLimit(pod *corev1.Pod) bool {
	if resources.IsCritical(pod) {
		return false
	}
	for i := range pod.Spec.Volumes {
		if limited(&pod.Spec.Volumes[i]) {
			return true
		}
	}
	q := resources.SpecLimits(pod)[corev1.ResourceEphemeralStorage]
	return q.Sign() > 0
}

// limited reports whether a volume is an emptyDir on disk with a limit; in memory the kernel
// enforces it.
func limited(v *corev1.Volume) bool {
	return v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault && v.EmptyDir.SizeLimit != nil &&
		v.EmptyDir.SizeLimit.Sign() > 0
}

// OverLocalLimit returns the message about the local storage limit that the pod exceeds, for its
// status, and the signal of the eviction for the metrics (L7.152); empty: none.
func OverLocalLimit(u Usage) (message, signal string) {
	total := u.FileBytes
	held := map[string]int64{}
	for _, v := range u.Volumes {
		held[v.Name] = v.Bytes
		total += v.Bytes
	}
	for i := range u.Pod.Spec.Volumes {
		v := &u.Pod.Spec.Volumes[i]
		if limited(v) && v.EmptyDir.SizeLimit.CmpInt64(held[v.Name]) < 0 {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name,
				v.EmptyDir.SizeLimit.String()), "emptydirfs.limit"
		}
	}
	for _, c := range u.Containers {
		total += c.Layer + c.Logs
	}
	if limit, ok := resources.SpecLimits(u.Pod)[corev1.ResourceEphemeralStorage]; ok && limit.Sign() > 0 &&
		limit.CmpInt64(total) < 0 {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ",
			limit.String()), "ephemeralpodfs.limit"
	}
	for _, c := range u.Containers {
		limit := limitOf(u.Pod, c.Name)
		if limit != nil && limit.CmpInt64(c.Layer+c.Logs) < 0 {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String()),
				"ephemeralcontainerfs.limit"
		}
	}
	return "", ""
}

func limitOf(pod *corev1.Pod, container string) *resource.Quantity {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if q, ok := list[i].Resources.Limits[corev1.ResourceEphemeralStorage]; ok && list[i].Name == container &&
				q.Sign() > 0 {
				return &q
			}
		}
	}
	return nil
}
