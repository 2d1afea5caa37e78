package resources

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Waiting resizes are tried in the order of L3.123.
func TestCompareResizes(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	resize := func(name string, held, wanted string, priority int32, class corev1.PodQOSClass,
		after time.Duration) Resize {
		pod := func(memory string) *corev1.Pod {
			p := &corev1.Pod{}
			p.Name, p.Spec.Priority, p.Status.QOSClass = name, &priority, class
			p.Spec.Containers = []corev1.Container{
				{Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}}}}
			return p
		}
		return Resize{Wanted: pod(wanted), Held: pod(held), Since: at.Add(after)}
	}
	want := []Resize{
		resize("shrinks", "2Gi", "1Gi", 0, corev1.PodQOSBestEffort, 9*time.Minute),
		resize("priority", "1Gi", "2Gi", 100, corev1.PodQOSBestEffort, 8*time.Minute),
		resize("guaranteed", "1Gi", "2Gi", 10, corev1.PodQOSGuaranteed, 7*time.Minute),
		resize("burstable, long", "1Gi", "2Gi", 10, corev1.PodQOSBurstable, 0),
		resize("burstable, short", "1Gi", "2Gi", 10, corev1.PodQOSBurstable, time.Minute),
		resize("best effort", "1Gi", "2Gi", 10, corev1.PodQOSBestEffort, 0),
		resize("least", "1Gi", "2Gi", -1, corev1.PodQOSGuaranteed, 0),
	}
	got := slices.Clone(want)
	rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
	slices.SortFunc(got, CompareResizes)
	for i := range want {
		if got[i].Wanted.Name != want[i].Wanted.Name {
			t.Errorf("%d: %s, not %s", i, got[i].Wanted.Name, want[i].Wanted.Name)
		}
	}
}

// L3.125
func TestCheckMemoryLimit(t *testing.T) {
	for _, tc := range []struct {
		limit, used int64
		want        string
	}{
		{0, 100, ""}, {100, 99, ""}, {100, 100, ""},
		{99, 100, `cannot decrease memory limits: attempting to set container "c" memory limit (99) below current usage (100)`},
	} {
		got := ""
		if err := CheckMemoryLimit("c", tc.limit, tc.used); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%d of %d: %q", tc.used, tc.limit, got)
		}
	}
}
