package node

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (r *fakeRuntime) ContainerStats(context.Context, *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse, error) {
	return &cri.ContainerStatsResponse{Stats: &cri.ContainerStats{Memory: &cri.MemoryUsage{UsageBytes: &cri.UInt64Value{Value: 50 << 20}}}}, nil
}

func (r *fakeRuntime) UpdateContainerResources(_ context.Context, req *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	if err := r.enter("UpdateContainerResources"); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	if r.containers[req.ContainerId] == nil {
		return nil, notFound(req.ContainerId)
	}
	return &cri.UpdateContainerResourcesResponse{}, nil
}

func (w *world) resize(name, memory string) {
	w.api.change(name, func(pod *corev1.Pod) {
		pod.Generation++
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}}
	})
}

func hasCondition(pod *corev1.Pod, t corev1.PodConditionType) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == t {
			return true
		}
	}
	return false
}

// A resize reaches the runtime while the container runs on (L3.120, L3.122), one
// below what is in use is refused and shown (L3.125), and one that the node has no
// room for waits until another pod makes some (L3.121, L3.123).
func TestResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		pod := webPod("a")
		pod.Generation = 1
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}
		w.api.put(pod)
		settle(time.Second)
		w.mustBe("a", corev1.PodRunning)

		w.resize("a", "128Mi")
		settle(time.Second)
		if n := w.runtime.count("UpdateContainerResources"); n != 1 {
			t.Errorf("%d updates", n)
		}
		if !w.sawEvent("ResizeStarted") || !w.sawEvent("ResizeCompleted") || hasCondition(w.api.get("a"), corev1.PodResizeInProgress) {
			t.Errorf("events %v, status %+v", w.events, w.api.get("a").Status.Conditions)
		}

		w.resize("a", "32Mi")
		settle(time.Second)
		if !w.sawEvent("below current usage (52428800)") || !hasCondition(w.api.get("a"), corev1.PodResizeInProgress) {
			t.Errorf("events %v", w.events)
		}
		w.resize("a", "100Mi")
		settle(time.Minute)
		if hasCondition(w.api.get("a"), corev1.PodResizeInProgress) {
			t.Errorf("conditions %+v", w.api.get("a").Status.Conditions)
		}
		if n := w.api.get("a").Status.ContainerStatuses[0].RestartCount; n != 0 {
			t.Errorf("%d restarts", n)
		}

		other := webPod("b")
		w.api.put(other)
		settle(time.Second)
		w.api.change("a", func(pod *corev1.Pod) { pod.Labels = map[string]string{"refused-beside": "b"} })
		w.resize("a", "200Mi")
		settle(time.Second)
		if !w.sawEvent("ResizeDeferred") || !hasCondition(w.api.get("a"), corev1.PodResizePending) {
			t.Fatalf("events %v", w.events)
		}
		updates := w.runtime.count("UpdateContainerResources")
		w.deleteGracefully("b", 1)
		settle(5 * time.Second)
		if n := w.runtime.count("UpdateContainerResources"); n != updates+1 || hasCondition(w.api.get("a"), corev1.PodResizePending) {
			t.Errorf("%d updates, conditions %+v", n, w.api.get("a").Status.Conditions)
		}
	})
}
