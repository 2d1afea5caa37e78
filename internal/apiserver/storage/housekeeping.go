package storage

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"go.etcd.io/etcd/server/v3/etcdserver"
)

const (
	// How often the housekeeping runs while something happens, as etcd itself would.
	housekeepingPeriod = 100 * time.Millisecond
	// After so many runs without a reason it stops. Watchers that fell behind in a burst have
	// caught up by then.
	housekeepingLooks = 10
	// What etcd still does by the clock, for changes that housekeeping does not notice: expired
	// leases.
	byItself = 10 * time.Second
)

// When the database is written to its file. No write depends on it: the log is synced with every write, and a start
// repeats what the file does not have. But it syncs the file twice, which delays the log's next sync: few small writes
// wait for more of them.
const (
	commitSoon   = 500 * time.Millisecond // after the last time, if there is much to write
	commitLate   = 5 * time.Second        // after a write, however little there is
	commitWrites = 256                    // this many writes are much: a read copies those that are not in the file
	commitBytes  = 1 << 20                // and so are so many bytes: they count for the quota only in the file
)

// etcd checks ten times a second for watchers that need old events, and has no option for that: a
// third of the CPU time of an idle process. Its loop is slowed down, and housekeeping does the same
// when there is a reason.
//
//go:linkname watchResyncPeriod go.etcd.io/etcd/server/v3/storage/mvcc.watchResyncPeriod
var watchResyncPeriod time.Duration

// syncWatchers sends watchers what they have missed and returns how many are still behind. It takes
// etcd's own locks.
//
//go:linkname syncWatchers go.etcd.io/etcd/server/v3/storage/mvcc.(*watchableStore).syncWatchers
func syncWatchers(store unsafe.Pointer) int

func init() { watchResyncPeriod = byItself }

// storeType is the type of which syncWatchers is a method.
const storeType = "*mvcc.watchableStore"

// housekeeping sends watchers the events from before they began, and writes the database to its
// file, when there is a reason to: a new watch or a write.
//
//	asleep ──write, new watch──▶ awake: a run each housekeepingPeriod ──housekeepingLooks without reason──▶ asleep
//
// Asleep, it still runs once when the database has to be written.
type housekeeping struct {
	resync func() int // sends watchers what they have missed, and returns how many are still behind
	commit func()
	room   func() // makes room in a full database
	files  func() // writes the next files of the log to the disk, ahead of the log
	timer  *time.Timer

	awake   atomic.Bool
	touched atomic.Bool  // since the last run
	full    atomic.Bool  // a write failed for lack of space since the last run
	writes  atomic.Int64 // since the last commit
	bytes   atomic.Int64 // of them

	file sync.Mutex // held while the database may be written anew, and mapped at another address

	mu        sync.Mutex // held during the housekeeping
	closed    bool
	idle      int // runs without a reason
	committed time.Time
	dirty     time.Time // the first run that saw a write since then
}

func newHousekeeping(s *etcdserver.EtcdServer, files *logFiles) *housekeeping {
	kv := s.KV()
	if t := fmt.Sprintf("%T", kv); t != storeType {
		panic(fmt.Sprintf("storage: etcd's store is a %s, not a %s", t, storeType))
	}
	// An interface that holds a pointer is its type and that pointer.
	store := (*[2]unsafe.Pointer)(unsafe.Pointer(&kv))[1]
	u := &housekeeping{resync: func() int { return syncWatchers(store) },
		commit: func() { s.Backend().ForceCommit() }, files: files.look}
	u.room = func() {
		u.file.Lock()
		defer u.file.Unlock()
		makeRoom(s)
	}
	u.timer = time.AfterFunc(never, u.look)
	return u
}

// wrote is called after each write, with its size.
func (u *housekeeping) wrote(size int) {
	u.writes.Add(1)
	u.bytes.Add(int64(size))
	if !u.touched.Load() {
		u.touched.Store(true)
		u.wake(housekeepingPeriod)
	}
}

// refused is called after a write that failed for lack of space.
func (u *housekeeping) refused() {
	u.full.Store(true)
	u.wake(0)
}

// watched is called when a watch has begun: it gets what it has missed at once.
func (u *housekeeping) watched() {
	u.touched.Store(true)
	if !u.wake(0) {
		u.timer.Reset(0)
	}
}

// wake reports whether the housekeeping was asleep.
func (u *housekeeping) wake(after time.Duration) bool {
	if !u.awake.CompareAndSwap(false, true) {
		return false
	}
	u.timer.Reset(after)
	return true
}

func (u *housekeeping) look() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return
	}
	if touched := u.touched.Swap(false); u.resync() > 0 || touched {
		u.idle = 0
	} else {
		u.idle++
	}
	now := time.Now()
	writes := u.writes.Load()
	if u.dirty.IsZero() && writes > 0 {
		u.dirty = now
	}
	due := commitDue(u.committed, u.dirty, writes, u.bytes.Load())
	if !due.IsZero() && !now.Before(due) {
		u.writes.Store(0)
		u.bytes.Store(0)
		u.committed, u.dirty, due = now, time.Time{}, time.Time{}
		u.commit()
		u.files()
	}
	if u.full.Swap(false) {
		u.room()
	}
	if u.idle < housekeepingLooks {
		u.timer.Reset(housekeepingPeriod)
		return
	}
	if !due.IsZero() { // asleep until then; who wakes it sets the timer anew
		u.timer.Reset(due.Sub(now))
	}
	u.awake.Store(false)
	if u.touched.Load() || u.full.Load() {
		u.wake(housekeepingPeriod)
	}
}

// commitDue returns when the database must be written to its file: committed is when that was done, dirty when the
// first write since then was seen. It is zero if nothing was written.
func commitDue(committed, dirty time.Time, writes, bytes int64) time.Time {
	switch {
	case writes == 0:
		return time.Time{}
	case writes >= commitWrites || bytes >= commitBytes:
		return committed.Add(commitSoon)
	}
	return dirty.Add(commitLate)
}

// close returns when the housekeeping has ended.
func (u *housekeeping) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	u.timer.Stop()
}
