package storage

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
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

// A write wakes the housekeeping, and its size is counted.
func TestWriteWakesHousekeeping(t *testing.T) {
	e := open(t, t.TempDir())
	u := e.housekeeping
	if u.awake.Load() || u.writes.Load() != 0 {
		t.Fatal("awake before anything was written")
	}
	if _, err := e.Client.KV.Txn(t.Context()).Then(clientv3.OpPut("/a", "1")).Commit(); err != nil {
		t.Fatal(err)
	}
	if !u.awake.Load() {
		t.Fatal("a write wakes nobody")
	}
	if w, b := u.writes.Load(), u.bytes.Load(); w != 1 || b != 1 {
		t.Fatalf("%d writes of %d bytes were counted", w, b)
	}
	before := e.server.Backend().(interface{ Commits() int64 }).Commits()
	u.mu.Lock()
	u.dirty = time.Now().Add(-commitLate)
	u.mu.Unlock()
	u.look()
	if after := e.server.Backend().(interface{ Commits() int64 }).Commits(); after == before || u.writes.Load() != 0 {
		t.Fatalf("%d commits, %d writes are left", after-before, u.writes.Load())
	}
}

// looker is a housekeeping without a store, in a bubble.
type looker struct {
	*housekeeping
	commits, rooms, looks int
}

func newLooker() *looker {
	b := &looker{}
	b.housekeeping = &housekeeping{
		resync: func() int { b.looks++; return 0 }, commit: func() { b.commits++ }, room: func() { b.rooms++ },
		files: func() {}}
	b.timer = time.AfterFunc(never, b.look)
	return b
}

// Few small writes reach the database's file together, and soon; the housekeeping sleeps before and after that.
func TestFewWritesShareACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLooker()
		defer b.close()
		for range 10 {
			b.wrote(100)
			time.Sleep(commitLate / 11)
		}
		if synctest.Wait(); b.commits != 0 {
			t.Fatalf("%d commits before the time", b.commits)
		}
		time.Sleep(commitLate/11 + 2*housekeepingPeriod)
		if synctest.Wait(); b.commits != 1 {
			t.Fatalf("%d commits", b.commits)
		}
		b.wrote(100)
		time.Sleep(commitLate - housekeepingPeriod)
		if synctest.Wait(); b.commits != 1 || b.awake.Load() {
			t.Fatalf("%d commits, awake %t: a single write keeps it awake", b.commits, b.awake.Load())
		}
		time.Sleep(2 * housekeepingPeriod)
		if synctest.Wait(); b.commits != 2 || b.awake.Load() {
			t.Fatalf("%d commits, awake %t", b.commits, b.awake.Load())
		}
		looks := b.looks
		time.Sleep(time.Hour)
		if synctest.Wait(); b.commits != 2 || b.looks != looks {
			t.Fatalf("%d commits, %d looks while nothing happens", b.commits-2, b.looks-looks)
		}
	})
}

// Much to write, by number or by size, is written every half second.
func TestManyWritesAreCommittedSoon(t *testing.T) {
	for _, c := range []struct{ writes, size int }{{commitWrites, 1}, {1, commitBytes}, {4, commitBytes / 4}} {
		synctest.Test(t, func(t *testing.T) {
			b := newLooker()
			defer b.close()
			for round := 1; round <= 5; round++ {
				for range c.writes {
					b.wrote(c.size)
				}
				time.Sleep(commitSoon + housekeepingPeriod)
				if synctest.Wait(); b.commits != round {
					t.Fatalf("%d writes of %d bytes: %d commits in round %d", c.writes, c.size, b.commits, round)
				}
			}
		})
	}
}

// A write that finds the database full, and a new watch, do not wait for the next commit.
func TestWakesWhileACommitIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLooker()
		defer b.close()
		b.wrote(1)
		time.Sleep(commitLate / 2)
		if synctest.Wait(); b.awake.Load() {
			t.Fatal("awake")
		}
		b.refused()
		if synctest.Wait(); b.rooms != 1 {
			t.Fatal("no room is made")
		}
		time.Sleep(commitLate / 3)
		looks := b.looks
		b.watched()
		if synctest.Wait(); b.looks != looks+1 {
			t.Fatalf("%d looks for a new watch", b.looks-looks)
		}
		time.Sleep(commitLate)
		if synctest.Wait(); b.commits != 1 {
			t.Fatalf("%d commits", b.commits)
		}
	})
}
