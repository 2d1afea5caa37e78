package volume

import (
	"os"
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

// Content that could not be written is written later, without another change: no event reports free space. What
// is missing is not looked for again and again.
func TestFailedRefreshIsRepeated(t *testing.T) {
	w := newWorld(t)
	w.put("cm", map[string]string{"a": "1"})
	pod := podWith("u1", configMapVolume("v", corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm")}))
	dir := w.mustPrepare(pod)["v"].HostPath
	p := w.find("u1")
	refresh := func(after time.Duration) (pods int) {
		due, _ := w.due(time.Now().Add(after), true)
		for _, p := range due {
			w.refresh(t.Context(), p)
		}
		return len(due)
	}
	w.put("cm", map[string]string{"a": "2"})
	if err := os.Rename(dir, dir+".away"); err != nil { // the write fails
		t.Fatal(err)
	}
	if n := refresh(0); n != 1 {
		t.Fatalf("%d pods due", n)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if n := refresh(0); n != 0 {
		t.Error("due at once: this would be a loop")
	}
	if n := refresh(tokenRetry); n != 1 {
		t.Error("never due again")
	}
	if diff := cmp.Diff([]string{"a 644 2"}, tree(t, dir)); diff != "" {
		t.Error(diff)
	}
	w.mu.Lock()
	delete(w.maps, "cm")
	w.mu.Unlock()
	w.changed("u1")
	if n := refresh(0); n != 1 || !p.renew.IsZero() {
		t.Errorf("%d pods due; a config map that is gone is looked for at %v", n, p.renew)
	}
}
