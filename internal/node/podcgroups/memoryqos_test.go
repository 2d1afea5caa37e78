package podcgroups

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/resources"
)

// onFiles is a Manager on a tree of files that looks like cgroup v2.
func onFiles(t *testing.T, q resources.MemoryQoS) (m *Manager, root string) {
	t.Helper()
	cgroups.TestMode = true
	t.Cleanup(func() { cgroups.TestMode = false })
	root = filepath.Join(t.TempDir(), "kubepods")
	m = New(Config{Root: "/carob-test", MemoryQoS: q})
	m.v2, m.bases = true, map[string]string{"": root}
	m.open = func(cg *cgroups.Cgroup, paths map[string]string) (cgroups.Manager, error) {
		dir := paths[""]
		if paths == nil {
			dir = filepath.Join(filepath.Dir(root), cg.Path)
		}
		cm, err := fs2.NewManager(cg, dir)
		return existing{cm}, err
	}
	files(t, root)
	files(t, filepath.Join(root, "burstable"))
	return m, root
}

// existing is a group that the test has made.
type existing struct{ cgroups.Manager }

func (existing) Apply(int) error { return nil }

func files(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup.controllers": "cpu memory pids", "memory.min": "7",
		"memory.low": "7", "memory.high": "max", "memory.max": "max", "memory.swap.max": "max", "cpu.weight": "1",
		"cpu.max": "max", "pids.max": "max"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// values are the contents of memory.min, memory.low, and memory.high.
func values(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	for _, name := range []string{"memory.min", "memory.low", "memory.high"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	return strings.Join(all, " ")
}

func memoryPod(uid, request, limit string) *corev1.Pod {
	list := func(q string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(q),
			corev1.ResourceCPU: resource.MustParse("1")}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
	pod.Spec.Containers = []corev1.Container{{Name: "c",
		Resources: corev1.ResourceRequirements{Requests: list(request), Limits: list(limit)}}}
	return pod
}

// What is kept for pods is in their groups and in those above, follows resizes, and goes with them (S11.141).
func TestMemoryIsKept(t *testing.T) {
	m, root := onFiles(t, resources.MemoryQoS{Tiered: true})
	burst, whole := memoryPod("u1", "1Mi", "4Mi"), memoryPod("u2", "2Mi", "2Mi")
	dirs := map[*corev1.Pod]string{}
	for _, pod := range []*corev1.Pod{burst, whole} {
		dirs[pod] = m.paths(resources.PodCgroupPath(resources.QoS(pod), pod.UID))[""]
		files(t, dirs[pod])
	}
	check := func(what string, want ...string) {
		t.Helper()
		got := []string{values(t, root), values(t, filepath.Join(root, "burstable")), values(t, dirs[burst]),
			values(t, dirs[whole])}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: %d: %q, want %q", what, i, got[i], want[i])
			}
		}
	}
	if err := m.writeMinimums(resources.MemoryTiers{}); err != nil { // as Init does
		t.Fatal(err)
	}
	check("at the start", "0 0 max", "7 0 max")
	for _, pod := range []*corev1.Pod{burst, whole} {
		if err := m.Ensure(pod); err != nil {
			t.Fatal(err)
		}
	}
	check("both", "3145728 1048576 max", "7 1048576 max", "7 1048576 max", "2097152 7 max")
	bigger := memoryPod("u1", "3Mi", "4Mi")
	if err := m.Resize(bigger, false); err != nil {
		t.Fatal(err)
	}
	check("resized", "5242880 3145728 max", "7 3145728 max", "7 3145728 max")
	if err := m.protect("u1", resources.MemoryTiers{}); err != nil { // as Remove does
		t.Fatal(err)
	}
	check("one is gone", "2097152 0 max", "7 0 max")

	if kept := m.Kept(); kept != (resources.MemoryTiers{Guaranteed: 2 << 20}) {
		t.Errorf("kept: %+v", kept)
	}
	// An agent that starts again.
	again := New(Config{Root: "/carob-test", MemoryQoS: resources.MemoryQoS{Tiered: true}})
	again.v2, again.bases, again.open = true, m.bases, m.open
	if !again.Present(whole) || !again.Present(bigger) {
		t.Fatal("the groups are not found")
	}
	check("adopted", "5242880 3145728 max", "7 3145728 max")
}

// Without a policy, nothing is written to the groups of pods.
func TestMemoryIsNotKept(t *testing.T) {
	m, root := onFiles(t, resources.MemoryQoS{Throttling: 0.5})
	pod := memoryPod("u1", "1Mi", "4Mi")
	dir := m.paths(resources.PodCgroupPath(resources.QoS(pod), pod.UID))[""]
	files(t, dir)
	if err := m.Ensure(pod); err != nil {
		t.Fatal(err)
	}
	if got := values(t, root) + values(t, dir); got != "7 7 max7 7 max" {
		t.Errorf("%s", got)
	}
}
