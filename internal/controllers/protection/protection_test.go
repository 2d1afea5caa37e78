package protection

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUsesClaim(t *testing.T) {
	owner := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p-uid"}}
	plain := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
	own := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "p-scratch",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner,
			corev1.SchemeGroupVersion.WithKind("Pod"))}}}
	foreign := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "p-scratch"}}
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := owner.DeepCopy()
		p.Spec.NodeName = "n"
		p.Spec.Volumes = []corev1.Volume{
			{Name: "d", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		}
		if change != nil {
			change(p)
		}
		return p
	}
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		claim *corev1.PersistentVolumeClaim
		used  bool
	}{
		{"a running pod", pod(nil), plain, true},
		{"a pod without a node", pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), plain, false},
		{"a pod that ended", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), plain, true},
		{"its ephemeral volume", pod(nil), own, true},
		{"somebody else's claim of that name", pod(nil), foreign, false},
	} {
		if got := usesClaim(c.pod, c.claim); got != c.used {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
