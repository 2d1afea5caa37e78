package podcgroups

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/core/resources"
)

// A pod's group is widened before its containers change and narrowed after it; a
// limit below what is in use is refused (L3.125). Also when an earlier process made it.
func TestResize(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	root := fmt.Sprintf("/carob-resize-%d", os.Getpid())
	m := New(Config{Root: root})
	if err := m.Init(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.DropRoot(); err != nil {
			t.Error(err)
		}
	})
	pod := podOf("33333333-4444", "500m", "64Mi")
	t.Cleanup(func() { _ = m.Remove(context.Background(), pod.UID) })
	if err := m.Ensure(pod); err != nil {
		t.Fatal(err)
	}
	dir := m.paths(resources.PodCgroupPath(corev1.PodQOSBurstable, pod.UID))
	limit := func() string {
		file, controller := "memory.limit_in_bytes", "memory"
		if m.V2() {
			file, controller = "memory.max", ""
		}
		b, err := os.ReadFile(filepath.Join(dir[controller], file))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	sized := func(memory string) *corev1.Pod {
		p := pod.DeepCopy()
		p.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse(memory)
		return p
	}
	for _, step := range []struct {
		memory string
		widen  bool
		want   string
	}{
		{"32Mi", true, "67108864"},
		{"32Mi", false, "33554432"},
		{"128Mi", true, "134217728"},
		{"128Mi", false, "134217728"},
	} {
		if err := m.Resize(sized(step.memory), step.widen); err != nil {
			t.Fatal(err)
		}
		if got := limit(); got != step.want {
			t.Errorf("%s, widen %v: limit %s, want %s", step.memory, step.widen, got, step.want)
		}
	}

	m = New(Config{Root: root})
	if err := m.Init(); err != nil {
		t.Fatal(err)
	}
	if !m.Present(pod) {
		t.Fatal("the group is not taken over")
	}
	if err := m.Resize(sized("256Mi"), true); err != nil {
		t.Fatal(err)
	}
	if got := limit(); got == "134217728" || got == "268435456" {
		t.Errorf("limit %s while it is not known what was in force", got)
	}
	if err := m.Resize(sized("256Mi"), false); err != nil {
		t.Fatal(err)
	}
	if got := limit(); got != "268435456" {
		t.Errorf("limit %s", got)
	}
}
