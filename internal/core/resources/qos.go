package resources

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresources "k8s.io/component-helpers/resource"
)

// QoS is the pod's quality of service class: the recorded one, otherwise the computed one (L1.40).
func QoS(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	return ComputeQoS(pod)
}

// ComputeQoS derives the class from the spec alone (L1.40).
func ComputeQoS(pod *corev1.Pod) corev1.PodQOSClass {
	var requests, limits cpuMemory
	limited := true // every container limits both cpu and memory
	if podresources.IsPodLevelResourcesSet(pod) {
		requests.add(pod.Spec.Resources.Requests)
		limited = limits.add(pod.Spec.Resources.Limits)
	} else {
		for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range list {
				requests.add(list[i].Resources.Requests)
				limited = limits.add(list[i].Resources.Limits) && limited
			}
		}
	}
	switch {
	case requests.isZero() && limits.isZero():
		return corev1.PodQOSBestEffort
	case limited && requests.cpu.Cmp(limits.cpu) == 0 && requests.memory.Cmp(limits.memory) == 0:
		return corev1.PodQOSGuaranteed
	default:
		return corev1.PodQOSBurstable
	}
}

type cpuMemory struct{ cpu, memory resource.Quantity }

// add sums list and reports whether it has both cpu and memory, above zero.
func (s *cpuMemory) add(list corev1.ResourceList) bool {
	cpu, memory := list[corev1.ResourceCPU], list[corev1.ResourceMemory]
	if cpu.Sign() > 0 {
		s.cpu.Add(cpu)
	}
	if memory.Sign() > 0 {
		s.memory.Add(memory)
	}
	return cpu.Sign() > 0 && memory.Sign() > 0
}

func (s *cpuMemory) isZero() bool { return s.cpu.IsZero() && s.memory.IsZero() }

const (
	configSource        = "kubernetes.io/config.source"
	configMirror        = corev1.MirrorPodAnnotationKey
	configSourceFromAPI = "api"
)

// IsStatic reports whether the pod comes from a manifest on the node instead of the API (L0.63). The annotation is not
// enough: whoever may annotate a pod could make it critical. The UID of a static pod is a hash of its manifest, that of
// another pod a UUID, which the API server chooses.
func IsStatic(pod *corev1.Pod) bool {
	source, ok := pod.Annotations[configSource]
	return ok && source != configSourceFromAPI && !isUUID(string(pod.UID))
}

func isUUID(s string) bool {
	return len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-'
}

// IsCritical reports whether the pod is static, a mirror pod or of system priority (L0.64).
func IsCritical(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[configMirror]
	return mirror || IsStatic(pod) || (pod.Spec.Priority != nil && *pod.Spec.Priority >= ClusterCriticalPriority)
}

// IsNodeCritical reports whether the pod is critical and of class system-node-critical (L0.64).
func IsNodeCritical(pod *corev1.Pod) bool {
	return IsCritical(pod) && pod.Spec.PriorityClassName == NodeCritical
}
