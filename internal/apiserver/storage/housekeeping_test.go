package storage

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcd itself would do it after ten seconds.
func TestWatchGetsPastChangesAtOnce(t *testing.T) {
	e := open(t, t.TempDir())
	ctx, stop := context.WithTimeout(t.Context(), byItself/2)
	defer stop()
	first, err := e.Client.Put(ctx, "/a", "1")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		w := e.Client.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(first.Header.Revision))
		r, ok := <-w
		if !ok || len(r.Events) != 1 || string(r.Events[0].Kv.Value) != "1" {
			t.Fatalf("watch %d: %v (open %t)", i, r, ok)
		}
	}
}

// More watches of old versions than etcd serves in one run; each must receive everything.
func TestManyWatchesGetPastChanges(t *testing.T) {
	const watches, writes = 1200, 20
	e := open(t, t.TempDir())
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	var first int64
	for i := range writes {
		r, err := e.Client.Put(ctx, fmt.Sprintf("/a/%d", i), "1")
		if err != nil {
			t.Fatal(err)
		}
		if first == 0 {
			first = r.Header.Revision
		}
	}
	var begun []clientv3.WatchChan
	for range watches {
		begun = append(begun, e.Client.Watch(ctx, "/a", clientv3.WithPrefix(), clientv3.WithRev(first)))
	}
	for i, w := range begun {
		for n := 0; n < writes; {
			r, ok := <-w
			if !ok || r.Err() != nil {
				t.Fatalf("watch %d ended after %d events: %v", i, n, r.Err())
			}
			n += len(r.Events)
		}
	}
}

// A write is in the database's file soon, and the housekeeping stops after that.
func TestUpkeepSleeps(t *testing.T) {
	e := open(t, t.TempDir())
	if e.housekeeping.awake.Load() {
		t.Fatal("awake before anything was written")
	}
	commits := func() int64 { return e.server.Backend().(interface{ Commits() int64 }).Commits() }
	before := commits()
	k := e.Client.KV
	if _, err := k.Txn(t.Context()).Then(clientv3.OpPut("/a", "1")).Commit(); err != nil {
		t.Fatal(err)
	}
	if !e.housekeeping.awake.Load() {
		t.Fatal("a write wakes nobody")
	}
	for deadline := time.Now().Add(byItself / 2); e.housekeeping.awake.Load() || commits() == before; {
		if time.Now().After(deadline) {
			t.Fatalf("awake %t, %d commits", e.housekeeping.awake.Load(), commits()-before)
		}
		<-time.After(time.Millisecond)
	}
}
