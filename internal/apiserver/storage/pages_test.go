package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"carob/internal/base/gctuning"
)

// residentDatabase returns how many kB of an engine's database are mapped into the process.
func residentDatabase(t *testing.T, e *Engine) (kB int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(maps), filepath.Join(e.server.Cfg.SnapDir(), "db")+"\n")
	_, after, _ = strings.Cut(after, "Rss:")
	if _, err := fmt.Sscan(after, &kB); !found || err != nil {
		t.Fatalf("the database is not mapped: %v", err)
	}
	return kB
}

// When the process becomes quiet, the database leaves its memory, and is read again when it is needed.
func TestDatabaseLeavesMemory(t *testing.T) {
	e := open(t, filepath.Join(t.TempDir(), "etcd"))
	value := strings.Repeat("x", 100<<10)
	for i := range 30 {
		if _, err := e.Client.Put(t.Context(), fmt.Sprint("/k", i), value); err != nil {
			t.Fatal(err)
		}
	}
	e.server.Backend().ForceCommit()
	read := func() {
		t.Helper()
		for i := range 30 {
			r, err := e.Client.KV.Get(t.Context(), fmt.Sprint("/k", i))
			if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != value {
				t.Fatalf("key %d: %v, %v", i, r, err)
			}
		}
	}
	read()
	before := residentDatabase(t, e)
	if err := gctuning.Settle(); err != nil {
		t.Fatal(err)
	}
	if after := residentDatabase(t, e); before < 2000 || after > before/4 {
		t.Errorf("%d kB are left of %d", after, before)
	}
	read()
	// While the file is written anew, its pages stay where they are.
	e.housekeeping.file.Lock()
	before = residentDatabase(t, e)
	if err := gctuning.Settle(); err != nil {
		t.Fatal(err)
	}
	if after := residentDatabase(t, e); after < before {
		t.Errorf("%d kB of %d during a defragmentation", after, before)
	}
	e.housekeeping.file.Unlock()
}
