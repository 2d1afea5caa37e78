package userns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

func pod(uid string, hostUsers bool) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{HostUsers: &hostUsers}}
}

func first(t *testing.T, m *Manager, uid string) uint32 {
	t.Helper()
	ns, err := m.Of(pod(uid, false))
	if err != nil {
		t.Fatal(err)
	}
	if len(ns.Uids) != 1 || ns.Uids[0].Length != 65536 || ns.Uids[0].ContainerId != 0 ||
		ns.Gids[0].HostId != ns.Uids[0].HostId {
		t.Fatalf("%+v", ns)
	}
	return ns.Uids[0].HostId
}

// Each pod has its own 65536 ids, the same after a restart of the agent, and gives them back (L3.163).
func TestRanges(t *testing.T) {
	machine(t, "", "")
	dir := t.TempDir()
	open := func() *Manager {
		m, err := Open(dir, klog.Background())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := open()
	if ns, err := m.Of(pod("host", true)); ns != nil || err != nil {
		t.Errorf("a pod in the host's namespace got %v, %v", ns, err)
	}
	a, b := first(t, m, "a"), first(t, m, "b")
	if a%65536 != 0 || b != a+65536 || first(t, m, "a") != a {
		t.Errorf("a %d, b %d", a, b)
	}
	m = open()
	if first(t, m, "b") != b || first(t, m, "c") != b+65536 {
		t.Error("ranges changed over a restart")
	}
	if err := os.RemoveAll(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	m.Release("a")
	if got := first(t, m, "d"); got != a {
		t.Errorf("the range that was given back is not used again: %d", got)
	}
}

// Beside a damaged file and a stray one the pods with a known range go on. No range that might be another pod's is
// assigned: pods that need one wait until the pod of the damaged file is gone.
func TestDamagedFile(t *testing.T) {
	machine(t, "", "")
	for _, damage := range []string{"{", "", "null", `{"uidMappings":[{"hostId":1,"length":65536}]}`} {
		dir := t.TempDir()
		m, err := Open(dir, klog.Background())
		if err != nil {
			t.Fatal(err)
		}
		lost, kept := first(t, m, "lost"), first(t, m, "kept")
		if err := os.WriteFile(filepath.Join(dir, "lost", fileName), []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "stray"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err = Open(dir, klog.Background()); err != nil {
			t.Fatalf("%q: %v", damage, err)
		}
		if got := first(t, m, "kept"); got != kept {
			t.Errorf("%q: the range changed from %d to %d", damage, kept, got)
		}
		for _, uid := range []string{"new", "lost"} {
			if ns, err := m.Of(pod(uid, false)); err == nil || !strings.Contains(err.Error(), "pod lost is unknown") {
				t.Errorf("%q: pod %s got %v, %v", damage, uid, ns, err)
			}
		}
		if err := os.RemoveAll(filepath.Join(dir, "lost")); err != nil {
			t.Fatal(err)
		}
		m.Release("lost")
		if got := first(t, m, "new"); got != lost {
			t.Errorf("%q: the range that was given back is not used again: %d", damage, got)
		}
	}
}
