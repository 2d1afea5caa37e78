package volume

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each claim of a pod is returned once, in the order of the volumes. A pod of 3 MB may have 50,000 of them: with a
// search through the list for each, that took the scheduler seconds.
func TestManyClaims(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	add := func(claim string) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", len(pod.Spec.Volumes)),
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: claim}}})
	}
	add("b")
	add("a")
	add("b")
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "e",
		VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
	if got := PodClaims(pod); !slices.Equal(got, []PodClaim{{"b", false}, {"a", false}, {"p-e", true}}) {
		t.Errorf("%v", got)
	}
	for i := range 50_000 {
		add(fmt.Sprint("c", i))
	}
	if got := PodClaims(pod); len(got) != 50_003 || got[50_002].Name != "c49999" {
		t.Errorf("%d claims", len(got))
	}
}
