package source

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slimPod keeps the parts of a pod that controllers read: identity, owners, node, status,
// tolerations, requests, addresses, named ports, and claims. It drops the rest (commands,
// environment, mounts, probes, security), about nine tenths.
func slimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Labels: pod.Labels, Annotations: pod.Annotations, Finalizers: pod.Finalizers,
			OwnerReferences: pod.OwnerReferences,
			Namespace:       pod.Namespace, Name: pod.Name, GenerateName: pod.GenerateName, UID: pod.UID,
			ResourceVersion: pod.ResourceVersion, Generation: pod.Generation,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, Tolerations: pod.Spec.Tolerations, Hostname: pod.Spec.Hostname,
			Subdomain: pod.Spec.Subdomain,
			Affinity:  slimAffinity(pod.Spec.Affinity), Volumes: slimVolumes(pod.Spec.Volumes),
			ResourceClaims: pod.Spec.ResourceClaims,
			InitContainers: slimContainers(pod.Spec.InitContainers), Containers: slimContainers(pod.Spec.Containers),
			Resources: pod.Spec.Resources, Overhead: pod.Spec.Overhead,
		},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message,
			Conditions: pod.Status.Conditions, StartTime: pod.Status.StartTime, PodIPs: pod.Status.PodIPs,
			InitContainerStatuses: slimStatuses(pod.Status.InitContainerStatuses),
			ContainerStatuses:     slimStatuses(pod.Status.ContainerStatuses),
			ResourceClaimStatuses: pod.Status.ResourceClaimStatuses,

			ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
		},
	}, nil
}

// slimContainers keeps the requests of containers, their named ports, and which of them are
// sidecars.
func slimContainers(all []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(all))
	for i := range all {
		out[i] = corev1.Container{Name: all[i].Name, Resources: all[i].Resources, RestartPolicy: all[i].RestartPolicy}
		for _, p := range all[i].Ports {
			if p.Name != "" {
				out[i].Ports = append(out[i].Ports, p)
			}
		}
	}
	return slices.Clip(out)
}

// slimStatuses keeps the states of containers and their restart counts.
func slimStatuses(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	out := make([]corev1.ContainerStatus, len(all))
	for i := range all {
		s := &all[i]
		out[i] = corev1.ContainerStatus{Name: s.Name, State: s.State, LastTerminationState: s.LastTerminationState,
			Ready: s.Ready, RestartCount: s.RestartCount}
	}
	return slices.Clip(out)
}

// slimVolumes keeps the volumes that are claims.
func slimVolumes(all []corev1.Volume) []corev1.Volume {
	var out []corev1.Volume
	for i := range all {
		if v := &all[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			out = append(out,
				corev1.Volume{Name: v.Name,
					VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: v.PersistentVolumeClaim,
						Ephemeral: v.Ephemeral}})
		}
	}
	return slices.Clip(out)
}

// slimAffinity keeps the required node affinity: pods of DaemonSets name their node there.
func slimAffinity(a *corev1.Affinity) *corev1.Affinity {
	if a == nil || a.NodeAffinity == nil {
		return nil
	}
	return &corev1.Affinity{NodeAffinity: a.NodeAffinity}
}
