package devices

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"carob/internal/core/pinning"
)

// pinned has CPUs 2 and 3 for one container.
type pinned struct{}

func (pinned) Near(types.UID, string) (pinning.Mask, bool) { return 0, false }

func (pinned) OwnCPUs(pod types.UID, container string) []int64 {
	if pod == "u1" && container == "own" {
		return []int64{2, 3}
	}
	return nil
}

func (pinned) Memory(types.UID, string) []*podresources.ContainerMemory { return nil }

func (pinned) Allocatable() ([]int64, []*podresources.ContainerMemory) {
	return []int64{1, 2, 3}, []*podresources.ContainerMemory{{MemoryType: "memory", Size: 1 << 30}}
}

// The pod resources API returns the exclusive CPUs of containers, and the allocatable ones (S12.91, S12.92).
func TestCPUsOfContainers(t *testing.T) {
	m, err := New(Config{Root: t.TempDir(), State: t.TempDir() + "/devices.json", Logger: klog.Background(),
		Pinning: pinned{}})
	if err != nil {
		t.Fatal(err)
	}
	m.hooks.Pods = func() []*corev1.Pod {
		return []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "own"}, {Name: "shared"}}}}}
	}
	l := lister{m: m}
	all, err := l.List(t.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil || len(all.PodResources) != 1 {
		t.Fatal(all, err)
	}
	one, err := l.Get(t.Context(), &podresources.GetPodResourcesRequest{PodNamespace: "ns", PodName: "p"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*podresources.PodResources{all.PodResources[0], one.PodResources} {
		if len(p.Containers) != 2 || !slices.Equal(p.Containers[0].CpuIds, []int64{2, 3}) ||
			len(p.Containers[1].CpuIds) > 0 {
			t.Errorf("%v", p)
		}
	}
	there, err := l.GetAllocatableResources(t.Context(), &podresources.AllocatableResourcesRequest{})
	if err != nil || !slices.Equal(there.CpuIds, []int64{1, 2, 3}) || len(there.Memory) != 1 {
		t.Errorf("%v, %v", there, err)
	}
}
