package statefulset

import (
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/core/workload"
)

// Kind is the kind of StatefulSets.
func Kind() schema.GroupVersionKind { return appsv1.SchemeGroupVersion.WithKind("StatefulSet") }

// Ordinal parses the name of a pod of the set (W3.5).
func Ordinal(set, pod string) (int, bool) {
	dash := strings.LastIndexByte(pod, '-')
	if dash < 0 || pod[:dash] != set {
		return 0, false
	}
	n, err := strconv.ParseInt(pod[dash+1:], 10, 32)
	// Each ordinal has one name: no leading zeros.
	return int(n), err == nil && strconv.FormatInt(n, 10) == pod[dash+1:] && n >= 0
}

// Member reports whether the name of a pod allows the set to claim it (W0.25).
func Member(set *appsv1.StatefulSet, pod metav1.Object) bool {
	_, ok := Ordinal(set.Name, pod.GetName())
	return ok
}

func podName(set *appsv1.StatefulSet, ordinal int) string {
	return set.Name + "-" + strconv.Itoa(ordinal)
}

func start(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals != nil {
		return int(set.Spec.Ordinals.Start)
	}
	return 0
}

func replicas(set *appsv1.StatefulSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

// inRange reports whether start ≤ ordinal < start + replicas (W3.5).
func inRange(set *appsv1.StatefulSet, ordinal int) bool {
	return ordinal >= start(set) && ordinal-start(set) < replicas(set)
}

// revisionOf returns the name of a pod's revision, or "".
func revisionOf(pod *corev1.Pod) string { return pod.Labels[appsv1.StatefulSetRevisionLabel] }

// newPod returns the pod for an ordinal (W3.6–W3.8).
func newPod(set *appsv1.StatefulSet, t *corev1.PodTemplateSpec, revision string, ordinal int) (*corev1.Pod, error) {
	pod, err := workload.NewPod(workload.Owner{Object: set, Kind: Kind()}, t)
	if err != nil {
		return nil, err
	}
	pod.Name, pod.GenerateName = podName(set, ordinal), ""
	GiveIdentity(set, pod)
	GiveStorage(set, pod)
	pod.Labels[appsv1.StatefulSetRevisionLabel] = revision
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, set.Spec.ServiceName
	return pod, nil
}

// HasIdentity reports whether the pod-name label is correct (W3.44).
func HasIdentity(pod *corev1.Pod) bool { return pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name }

// GiveIdentity sets the labels with the pod's name and ordinal (W3.6).
func GiveIdentity(set *appsv1.StatefulSet, pod *corev1.Pod) {
	ordinal, _ := Ordinal(set.Name, pod.Name)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.StatefulSetPodNameLabel] = pod.Name
	pod.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
}

// HasStorage reports whether a pod of the set mounts the claims of its ordinal (W3.44).
func HasStorage(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	ordinal, _ := Ordinal(set.Name, pod.Name)
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == t.Name && v.PersistentVolumeClaim != nil &&
				v.PersistentVolumeClaim.ClaimName == claimName(set, t, ordinal)
		}) {
			return false
		}
	}
	return true
}

// GiveStorage adds a volume for each claim template. They come first and replace volumes with the same name (W3.8).
func GiveStorage(set *appsv1.StatefulSet, pod *corev1.Pod) {
	ordinal, _ := Ordinal(set.Name, pod.Name)
	var volumes []corev1.Volume
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		volumes = append(volumes, corev1.Volume{Name: t.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(set, t, ordinal)}}})
	}
	for _, v := range pod.Spec.Volumes {
		if !slices.ContainsFunc(set.Spec.VolumeClaimTemplates,
			func(t corev1.PersistentVolumeClaim) bool { return t.Name == v.Name }) {
			volumes = append(volumes, v)
		}
	}
	pod.Spec.Volumes = volumes
}
