package userns

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	dir := t.TempDir()
	open := func() *Manager {
		m, err := Open(dir)
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
	if a != 65536 || b != 2*65536 || first(t, m, "a") != a {
		t.Errorf("a %d, b %d", a, b)
	}
	m = open()
	if first(t, m, "b") != b || first(t, m, "c") != 3*65536 {
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

func TestDamagedFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", fileName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a damaged file was read")
	}
}
