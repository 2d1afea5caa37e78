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
	return &cri.ContainerStatsResponse{
		Stats: &cri.ContainerStats{Memory: &cri.MemoryUsage{UsageBytes: &cri.UInt64Value{Value: 50 << 20}}}}, nil
}

func (r *fakeRuntime) UpdateContainerResources(_ context.Context,
	req *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
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
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}}
	})
}

// crowded is the admission of a node whose room for memory limits is the pod's label "room".
func crowded(pod *corev1.Pod, others []*corev1.Pod) bool {
	label := pod.Labels["room"]
	if label == "" {
		return false
	}
	room := resource.MustParse(label)
	for _, p := range append(others, pod) {
		room.Sub(*p.Spec.Containers[0].Resources.Limits.Memory())
	}
	return room.Sign() < 0
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
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}
		w.api.put(pod)
		settle(time.Second)
		w.mustBe("a", corev1.PodRunning)

		w.resize("a", "128Mi")
		settle(time.Second)
		if n := w.runtime.count("UpdateContainerResources"); n != 1 {
			t.Errorf("%d updates", n)
		}
		if !w.hasEvent("ResizeStarted") || !w.hasEvent("ResizeCompleted") ||
			hasCondition(w.api.get("a"), corev1.PodResizeInProgress) {
			t.Errorf("events %v, status %+v", w.events, w.api.get("a").Status.Conditions)
		}

		w.resize("a", "32Mi")
		settle(time.Second)
		if !w.hasEvent("below current usage (52428800)") || !hasCondition(w.api.get("a"), corev1.PodResizeInProgress) {
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
		if !w.hasEvent("ResizeDeferred") || !hasCondition(w.api.get("a"), corev1.PodResizePending) {
			t.Fatalf("events %v", w.events)
		}
		updates := w.runtime.count("UpdateContainerResources")
		w.deleteGracefully("b", 1)
		settle(5 * time.Second)
		if n := w.runtime.count("UpdateContainerResources"); n != updates+1 ||
			hasCondition(w.api.get("a"), corev1.PodResizePending) {
			t.Errorf("%d updates, conditions %+v", n, w.api.get("a").Status.Conditions)
		}
	})
}

// Freed resources go to the waiting resize with the highest priority, in any order of requests (L3.123), and two
// concurrent requests never get the same resources.
func TestResizesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		put := func(name, memory string, priority int32) {
			pod := webPod(name)
			pod.Generation = 1
			pod.Labels = map[string]string{"room": "1000Mi"}
			pod.Spec.Priority = &priority
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
				Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}}
			w.api.put(pod)
		}
		put("big", "700Mi", 0)
		for _, name := range []string{"a", "b", "c"} {
			put(name, "100Mi", map[string]int32{"a": 1, "b": 3, "c": 2}[name])
		}
		settle(time.Second)
		for _, name := range []string{"a", "b", "c"} {
			w.mustBe(name, corev1.PodRunning)
			w.resize(name, "600Mi") // one of them has room beside the others
		}
		settle(time.Second)
		for _, name := range []string{"a", "b", "c"} {
			if !hasCondition(w.api.get(name), corev1.PodResizePending) {
				t.Fatalf("%s is not deferred: %+v", name, w.api.get(name).Status.Conditions)
			}
		}
		w.deleteGracefully("big", 1)
		settle(5 * time.Second)
		for name, waits := range map[string]bool{"a": true, "b": false, "c": true} {
			if hasCondition(w.api.get(name), corev1.PodResizePending) != waits {
				t.Errorf("%s: %+v", name, w.api.get(name).Status.Conditions)
			}
		}
		w.resize("b", "100Mi")
		settle(5 * time.Second)
		w.resize("a", "601Mi") // all at once again, from the least
		w.resize("c", "601Mi")
		settle(5 * time.Second)
		granted := 0
		for _, name := range []string{"a", "b", "c"} {
			if !hasCondition(w.api.get(name), corev1.PodResizePending) &&
				w.api.get(name).Spec.Containers[0].Resources.Limits.Memory().Value() > 600<<20 {
				granted++
			}
		}
		if granted != 1 {
			t.Errorf("%d of the resizes that were asked for at once have the room of one", granted)
		}
	})
}
