package stream

import (
	"encoding/json"
	"net/http"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/node/summary"
)

// Containers are measured once for a summary: with their pods, or by themselves if the runtime reports pods without
// all of their containers.
func TestSummaryMeasuresOnce(t *testing.T) {
	w := newWorld(t)
	w.run("id1", "")
	pod := func(containers ...*cri.ContainerStats) []*cri.PodSandboxStats {
		return []*cri.PodSandboxStats{{
			Attributes: &cri.PodSandboxAttributes{Metadata: &cri.PodSandboxMetadata{Uid: "u1"}},
			Linux: &cri.LinuxPodSandboxStats{Containers: containers,
				Process: &cri.ProcessUsage{ProcessCount: &cri.UInt64Value{Value: 3}}}}}
	}
	own := &cri.ContainerStats{
		Attributes: &cri.ContainerAttributes{Id: "id1",
			Labels: map[string]string{"io.kubernetes.pod.uid": "u1", "io.kubernetes.container.name": "c"}},
		Memory: &cri.MemoryUsage{WorkingSetBytes: &cri.UInt64Value{Value: 8192}}}
	for name, tc := range map[string]struct {
		sandboxes []*cri.PodSandboxStats
		lists     int
		memory    uint64
	}{
		"with their pods": {pod(own), 0, 8192}, "pods only": {pod(), 1, 4096}, "no pods": {nil, 1, 4096},
	} {
		w.change(func() { w.sandboxes, w.lists = tc.sandboxes, 0 })
		code, text := w.get("api", "/stats/summary")
		var got summary.Summary
		if err := json.Unmarshal([]byte(text), &got); err != nil || code != http.StatusOK || len(got.Pods) != 1 ||
			len(got.Pods[0].Containers) != 1 || *got.Pods[0].Containers[0].Memory.WorkingSetBytes != tc.memory ||
			(got.Pods[0].Processes != nil) != (tc.sandboxes != nil) {
			t.Errorf("%s: %d %s: %v", name, code, text, err)
		}
		w.mu.Lock()
		if w.lists != tc.lists {
			t.Errorf("%s: containers were measured %d times by themselves", name, w.lists)
		}
		w.mu.Unlock()
	}
}
