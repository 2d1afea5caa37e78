package volume

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// Rendering does not wait for pods whose volumes are being set up or removed, which a driver may delay, and skips none
// of them.
func TestRefreshOfBusyPods(t *testing.T) {
	w := newWorld(t)
	w.put("cm", map[string]string{"a": "1"})
	pod := podWith("u1", configMapVolume("v", corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm")}))
	v := w.mustPrepare(pod)["v"]
	w.put("cm", map[string]string{"a": "2"})
	p := w.find("u1")
	p.mu.Lock()
	if due, _ := w.due(time.Now(), true); len(due) != 1 || w.refresh(t.Context(), p) {
		t.Fatalf("%d pods due, or refreshed while busy", len(due))
	}
	if due, next := w.due(time.Now(), false); len(due) != 1 || next.IsZero() {
		t.Fatalf("%d pods due, next %v", len(due), next)
	}
	p.mu.Unlock()
	if due, _ := w.due(time.Now(), true); len(due) != 1 || !w.refresh(t.Context(), p) {
		t.Fatalf("%d pods due, or not refreshed", len(due))
	}
	if diff := cmp.Diff([]string{"a 644 2"}, tree(t, v.HostPath)); diff != "" {
		t.Error(diff)
	}
}
