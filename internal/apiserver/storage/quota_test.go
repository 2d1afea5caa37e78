package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"carob/internal/base/errkind"
)

func put(t *testing.T, e *Engine, key, value string) error {
	t.Helper()
	_, err := e.Client.KV.Txn(t.Context()).Then(clientv3.OpPut(key, value)).Commit()
	return err
}

// A full database reports it, and accepts writes again, without a restart, after enough was deleted
// and compacted.
func TestFullDatabase(t *testing.T) {
	const quota = 16 << 20
	dir := filepath.Join(t.TempDir(), "etcd")
	e, err := Open(t.Context(), Config{Dir: dir, NoFsync: true, Quota: quota})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { e.Close() }()
	big := strings.Repeat("x", 100<<10)
	fill := func() (n int) {
		for ; n < 20_000; n++ { // writes count when they are in the file, half a second later
			if err := put(t, e, fmt.Sprint("/k/", n), big); err != nil {
				return n
			}
		}
		t.Fatal("it has no end")
		return n
	}
	if n := fill(); n < 100 {
		t.Errorf("full after %d", n)
	}
	err = e.Check(t.Context())
	if !errkind.Is(err, errkind.Exhausted) || !strings.Contains(err.Error(), "16 MB") || e.Err() != nil {
		t.Errorf("health of a full database: %v, %v", err, e.Err())
	}
	// Neither a restart nor a write creates space.
	e.Close()
	if e, err = Open(t.Context(), Config{Dir: dir, NoFsync: true, Quota: quota}); err != nil {
		t.Fatal(err)
	}
	if err := put(t, e, "/small", "x"); err == nil {
		t.Error("a full database takes a write")
	}
	r, err := e.Client.KV.Txn(t.Context()).Then(clientv3.OpDelete("/k/", clientv3.WithPrefix())).Commit()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Client.KV.Compact(t.Context(), r.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; put(t, e, "/small", "x") != nil; <-tick.C {
		if t.Context().Err() != nil {
			t.Fatal(e.Check(t.Context()))
		}
	}
	if err := e.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if n := fill(); n < 100 {
		t.Errorf("full again after %d", n)
	}
}

// The disk becomes full while the engine writes: the engine reports it and ends; when there is
// space again, the next start has everything that was acknowledged.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a file system of its own")
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=150m"); err != nil {
		t.Skipf("no file system of its own: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	dir := filepath.Join(disk, "etcd")
	e, err := Open(t.Context(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("x", 500<<10)
	var stored atomic.Int64 // acknowledged
	go func() {
		for put(t, e, fmt.Sprint("/k/", stored.Load()), big) == nil {
			stored.Add(1)
		}
	}()
	select {
	case <-e.Failed():
	case <-time.After(time.Minute):
		t.Fatalf("nobody is told after %d writes", stored.Load())
	}
	if err := e.Err(); !errkind.Is(err, errkind.Exhausted) || !strings.Contains(err.Error(), "free some space") ||
		!errkind.Is(e.Check(t.Context()), errkind.Exhausted) {
		t.Errorf("%v", err)
	}
	t.Logf("%d writes", stored.Load())
	// This engine cannot be closed any more; a new process would find its files.
	again := filepath.Join(t.TempDir(), "etcd")
	if err := os.CopyFS(again, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(again, "lock")); err != nil {
		t.Fatal(err)
	}
	if e, err = Open(t.Context(), Config{Dir: again, NoFsync: true}); err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	got, err := e.Client.KV.Get(t.Context(), "/k/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || got.Count < stored.Load() {
		t.Errorf("%d of %d writes are there: %v", got.Count, stored.Load(), err)
	}
}
