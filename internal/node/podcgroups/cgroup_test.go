package podcgroups

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/resources"
)

func podOf(uid string, cpu, memory string) *corev1.Pod {
	c := corev1.Container{Name: "c"}
	if cpu != "" {
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	if memory != "" {
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
}

// Names as CRI gets them (L3.117d), below the root of this carob.
func TestParent(t *testing.T) {
	for _, tt := range []struct {
		root    string
		systemd bool
		pod     *corev1.Pod
		want    string
	}{
		{"/", false, podOf("a-b", "", ""), "/kubepods/besteffort/poda-b"},
		{"/carob-1", false, podOf("a-b", "100m", ""), "/carob-1/kubepods/burstable/poda-b"},
		{"/", true, podOf("a-b", "", ""), "kubepods-besteffort-poda_b.slice"},
		{"/carob-1", true, podOf("a-b", "100m", ""), "carob_1-kubepods-burstable-poda_b.slice"},
	} {
		if got := New(Config{Root: tt.root, Systemd: tt.systemd}).Parent(tt.pod); got != tt.want {
			t.Errorf("root %s, systemd %v: %s, want %s", tt.root, tt.systemd, got, tt.want)
		}
	}
}

// A pod's groups in the host's hierarchies: made with limits, listed, and removed
// with a process that is left in them (L3.117, L7.35).
func TestPodGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	m := New(Config{Root: fmt.Sprintf("/carob-test-%d", os.Getpid()), PodPids: 77})
	if err := m.Init(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.DropRoot(); err != nil {
			t.Error(err)
		}
		for _, base := range m.bases {
			if _, err := os.Stat(filepath.Dir(base)); err == nil {
				t.Errorf("%s is left", filepath.Dir(base))
			}
		}
	})
	pod := podOf("11111111-2222", "500m", "64Mi")
	t.Cleanup(func() { _ = m.Remove(context.Background(), pod.UID) })
	if m.Exists(pod.UID) || m.Present(pod) {
		t.Fatal("the group exists before Ensure")
	}
	for range 2 {
		if err := m.Ensure(pod); err != nil {
			t.Fatal(err)
		}
	}
	if !m.Exists(pod.UID) || !m.Present(pod) {
		t.Fatal("the group does not exist after Ensure")
	}
	uids, err := m.List()
	if err != nil || len(uids) != 1 || uids[0] != pod.UID {
		t.Fatalf("List: %v, %v", uids, err)
	}
	read := func(dir, v1, v2 string) string {
		file := v1
		if m.V2() {
			file = v2
		}
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	dirs := m.paths(resources.PodCgroupPath(corev1.PodQOSBurstable, pod.UID))
	dir := func(controller string) string {
		if m.V2() {
			controller = ""
		}
		return dirs[controller]
	}
	if got := read(dir("memory"), "memory.limit_in_bytes", "memory.max"); got != "67108864" {
		t.Errorf("memory limit %s", got)
	}
	if got := read(dir("pids"), "pids.max", "pids.max"); got != "77" {
		t.Errorf("processes of the pod %s", got) // L3.117m
	}
	if err := m.Resize(pod, true); err != nil {
		t.Fatal(err)
	}
	if got := read(dir("pids"), "pids.max", "pids.max"); got != "77" {
		t.Errorf("processes of the pod after a resize %s", got)
	}
	shares := map[bool]string{false: "512", true: fmt.Sprint(resources.CPUWeight(512))}[m.V2()]
	if got := read(dir("cpu"), "cpu.shares", "cpu.weight"); got != shares {
		t.Errorf("cpu shares of the pod %s, want %s", got, shares)
	}
	if got := read(filepath.Dir(dir("cpu")), "cpu.shares", "cpu.weight"); got != shares {
		t.Errorf("cpu shares of the burstable class %s, want %s", got, shares) // L3.117h
	}

	// All pods together have what the machine has (L10.77).
	capacity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("2Ti")}
	if err := m.Enforce(capacity, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3"),
		corev1.ResourceMemory: resource.MustParse("1Ti"), "pid": resource.MustParse("12345")}); err != nil {
		t.Fatal(err)
	}
	all := func(controller string) string { return filepath.Dir(filepath.Dir(dir(controller))) }
	if got, want := read(all("cpu"), "cpu.shares", "cpu.weight"),
		map[bool]string{false: "3072", true: fmt.Sprint(resources.CPUWeight(3072))}[m.V2()]; got != want {
		t.Errorf("cpu shares of all pods %s, want %s", got, want)
	}
	if got, want := read(filepath.Dir(all("cpu")), "cpu.shares", "cpu.weight"),
		map[bool]string{false: "3072", true: fmt.Sprint(resources.CPUWeight(3072))}[m.V2()]; got != want {
		t.Errorf("cpu shares of the group that has kubepods: %s, want %s", got, want)
	}
	if got := read(all("memory"), "memory.limit_in_bytes", "memory.max"); got != fmt.Sprint(1<<40) {
		t.Errorf("memory of all pods %s", got)
	}
	if got := read(all("pids"), "pids.max", "pids.max"); got != "12345" {
		t.Errorf("process IDs of all pods %s", got)
	}

	// Without a limit only the weight remains (S11.122).
	if err := m.Enforce(capacity, nil); err != nil {
		t.Fatal(err)
	}
	if got := read(all("pids"), "pids.max", "pids.max"); got != "max" {
		t.Errorf("process IDs of all pods without a limit: %s", got)
	}
	if got, want := read(all("cpu"), "cpu.shares", "cpu.weight"),
		map[bool]string{false: "4096", true: fmt.Sprint(resources.CPUWeight(4096))}[m.V2()]; got != want {
		t.Errorf("cpu shares of all pods without a limit: %s, want %s", got, want)
	}

	sleep := exec.Command("sleep", "600")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sleep.Wait() }()
	t.Cleanup(func() { _ = sleep.Process.Kill() })
	for _, d := range m.found(resources.PodCgroupPath(corev1.PodQOSBurstable, pod.UID), false) {
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(fmt.Sprint(sleep.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := m.Remove(context.Background(), pod.UID); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process that was left: %v", err)
	}
	if m.Exists(pod.UID) {
		t.Error("the group exists after Remove")
	}
}

// A removed group of a class, and the rest of a pod's group, do not prevent the pod from starting.
func TestIncompleteGroups(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	m := New(Config{Root: fmt.Sprintf("/carob-test-%d", os.Getpid())})
	if err := m.Init(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.DropRoot(); err != nil {
			t.Error(err)
		}
	})
	pod := podOf("33333333-4444", "", "")
	dirs := m.paths(resources.PodCgroupPath(corev1.PodQOSBestEffort, pod.UID))
	for _, left := range []string{"nothing of the class", "one directory of the pod"} {
		if left == "nothing of the class" {
			for _, dir := range m.paths(resources.QoSCgroup(corev1.PodQOSBestEffort)) {
				_ = os.Remove(dir)
			}
		} else if err := os.Mkdir(dirs[slices.Max(slices.Collect(maps.Keys(m.found(
			resources.QoSCgroup(corev1.PodQOSBestEffort), false))))], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := m.Ensure(pod); err != nil {
			t.Fatalf("%s was left: %v", left, err)
		}
		got := m.found(resources.PodCgroupPath(corev1.PodQOSBestEffort, pod.UID), false)
		if want := m.found(resources.QoSCgroup(corev1.PodQOSBestEffort), false); len(got) != len(want) {
			t.Errorf("%s was left: made in %v of %v", left, got, want)
		}
		if dir := got["cpuset"]; dir != "" {
			b, err := os.ReadFile(filepath.Join(dir, "cpuset.cpus"))
			if err != nil || strings.TrimSpace(string(b)) == "" {
				t.Errorf("%s was left: processors %q, %v", left, b, err)
			}
		}
		if err := m.Remove(context.Background(), pod.UID); err != nil {
			t.Fatal(err)
		}
	}
}

// What the group of a pod costs, made and removed.
func BenchmarkEnsure(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root")
	}
	m := New(Config{Root: fmt.Sprintf("/carob-bench-%d", os.Getpid()), PodPids: 77})
	if err := m.Init(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = m.DropRoot() })
	for n := 0; b.Loop(); n++ {
		pod := podOf(fmt.Sprintf("11111111-%d", n), "", "")
		if err := m.Ensure(pod); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := m.Remove(context.Background(), pod.UID); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
