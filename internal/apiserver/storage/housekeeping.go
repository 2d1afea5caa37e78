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
	commitEvery        = 500 * time.Millisecond // of the database; the log is synced with every write
	// After so many runs without a reason it stops. Watchers that fell behind in a burst have
	// caught up by then.
	housekeepingLooks = 10
	// What etcd still does by the clock, for changes that housekeeping does not notice: expired
	// leases.
	byItself = 10 * time.Second
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
type housekeeping struct {
	store  unsafe.Pointer
	commit func()
	room   func() // makes room in a full database
	timer  *time.Timer

	awake   atomic.Bool
	touched atomic.Bool // since the last run
	full    atomic.Bool // a write failed for lack of space since the last run
	written atomic.Bool // since the last commit

	file sync.Mutex // held while the database may be written anew, and mapped at another address

	mu        sync.Mutex // held during the housekeeping
	closed    bool
	idle      int // runs without a reason
	committed time.Time
}

func newHousekeeping(s *etcdserver.EtcdServer) *housekeeping {
	kv := s.KV()
	if t := fmt.Sprintf("%T", kv); t != storeType {
		panic(fmt.Sprintf("storage: etcd's store is a %s, not a %s", t, storeType))
	}
	// An interface that holds a pointer is its type and that pointer.
	u := &housekeeping{store: (*[2]unsafe.Pointer)(unsafe.Pointer(&kv))[1],
		commit: func() { s.Backend().ForceCommit() }}
	u.room = func() {
		u.file.Lock()
		defer u.file.Unlock()
		makeRoom(s)
	}
	u.timer = time.AfterFunc(never, u.look)
	return u
}

// wrote is called after each write.
func (u *housekeeping) wrote() {
	if !u.written.Load() {
		u.written.Store(true)
	}
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
	touched := u.touched.Swap(false)
	if syncWatchers(u.store) > 0 || touched || u.written.Load() {
		u.idle = 0
	} else {
		u.idle++
	}
	if now := time.Now(); now.Sub(u.committed) >= commitEvery && u.written.Swap(false) {
		u.committed = now
		u.commit()
	}
	if u.full.Swap(false) {
		u.room()
	}
	if u.idle < housekeepingLooks {
		u.timer.Reset(housekeepingPeriod)
		return
	}
	u.awake.Store(false)
	if u.touched.Load() {
		u.wake(housekeepingPeriod)
	}
}

// close returns when the housekeeping has ended.
func (u *housekeeping) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	u.timer.Stop()
}
