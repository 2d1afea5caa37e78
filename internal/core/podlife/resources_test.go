package podlife

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What the runtime runs is reported, except where it only rounds (L3.127, L4.32b).
func TestResourcesInForce(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			l[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		if len(l) == 0 {
			return nil
		}
		return l
	}
	for _, test := range []struct {
		name                    string
		allocated, actual, want corev1.ResourceRequirements
	}{
		{"nothing asked, least shares",
			corev1.ResourceRequirements{},
			corev1.ResourceRequirements{Requests: list("2m", "")},
			corev1.ResourceRequirements{}},
		{"rounded",
			corev1.ResourceRequirements{Requests: list("101m", "64Mi"), Limits: list("5m", "1Gi")},
			corev1.ResourceRequirements{Requests: list("100m", ""), Limits: list("10m", "1Gi")},
			corev1.ResourceRequirements{Requests: list("101m", "64Mi"), Limits: list("5m", "1Gi")}},
		{"not resized yet",
			corev1.ResourceRequirements{Requests: list("500m", "64Mi"), Limits: list("1", "1Gi")},
			corev1.ResourceRequirements{Requests: list("100m", ""), Limits: list("200m", "512Mi")},
			corev1.ResourceRequirements{Requests: list("100m", "64Mi"), Limits: list("200m", "512Mi")}},
		{"a limit that is not in force",
			corev1.ResourceRequirements{Limits: list("1", "1Gi")},
			corev1.ResourceRequirements{Requests: list("2m", "")},
			corev1.ResourceRequirements{Limits: corev1.ResourceList{}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := test.allocated.DeepCopy()
			got := inForce(&test.allocated, &test.actual)
			if diff := cmp.Diff(&test.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, &test.allocated); diff != "" {
				t.Errorf("the spec was changed: %s", diff)
			}
		})
	}
}
