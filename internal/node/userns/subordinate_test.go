package userns

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/klog/v2"
)

// machine makes the files with the ids of users.
func machine(t *testing.T, users, groups string) {
	t.Helper()
	was := subordinate
	t.Cleanup(func() { subordinate = was })
	dir := t.TempDir()
	subordinate = []string{filepath.Join(dir, "subuid"), filepath.Join(dir, "subgid"), filepath.Join(dir, "missing")}
	wasMap := uidMap
	t.Cleanup(func() { uidMap = wasMap })
	uidMap = filepath.Join(dir, "uid_map")
	if err := os.WriteFile(uidMap, []byte("         0          0 4294967295\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{users, groups} {
		if err := os.WriteFile(subordinate[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func opened(t *testing.T, dir string) *Manager {
	t.Helper()
	m, err := Open(dir, klog.Background())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Two nodes on one machine assign other ids, and none of those that useradd gives to users.
func TestNodesBeginElsewhere(t *testing.T) {
	machine(t, "", "")
	seen := map[uint32]string{}
	for _, dir := range []string{"/var/lib/carob/node/pods", "/var/lib/carob2/node/pods", "/srv/a/node/pods"} {
		slot := firstSlot(dir)
		for _, other := range seen {
			if d := int64(slot) - int64(firstSlot(other)); max(d, -d) < 110 {
				t.Errorf("%s and %s begin %d pods apart", dir, other, d)
			}
		}
		seen[slot] = dir
		if slot*length <= 600_100_000 || slot*length+length > 1_000_000_000 {
			t.Errorf("%s begins with %d", dir, slot*length)
		}
	}
	if err := os.WriteFile(uidMap, []byte("0 100000 65536\n65536 165536 9000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if slot := firstSlot("/var/lib/carob/node/pods"); slot != 1 {
		t.Errorf("a node in a user namespace with few ids begins with slot %d", slot)
	}
}

// No pod gets ids of a user or a group of the machine; damaged lines, and ids beyond the last one, do no harm.
func TestSubordinateIDs(t *testing.T) {
	machine(t, "", "")
	dir := t.TempDir()
	begin := firstSlot(dir)
	machine(t, fmt.Sprintf("# x\n\nlxd:%d:65536\nbad\nbad:x:y\nbad:1:\nnone:%d:0\n", begin*length, (begin+3)*length),
		fmt.Sprintf("a:%d:2", (begin+2)*length-1))
	m := opened(t, dir)
	if got := first(t, m, "a"); got != (begin+3)*length {
		t.Errorf("got %d, want %d", got, (begin+3)*length)
	}
	machine(t, fmt.Sprintf("root:%d:18446744073709551615\n", begin*length), "")
	m = opened(t, t.TempDir())
	m.first = begin
	if got := first(t, m, "a"); got != length {
		t.Errorf("after all upper ids are reserved: %d", got)
	}
	machine(t, "root:0:18446744073709551615\n", "")
	if ns, err := opened(t, t.TempDir()).Of(pod("a", false)); err == nil {
		t.Errorf("ids that a user has: %v", ns)
	}
	if got := first(t, opened(t, dir), "a"); got != (begin+3)*length {
		t.Errorf("a pod has lost its ids: %d", got)
	}
}
