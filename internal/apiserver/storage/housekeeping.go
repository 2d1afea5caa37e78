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
	// How often etcd is looked after while something happens, as it would do itself.
	housekeepingPeriod = 100 * time.Millisecond
	commitEvery        = 500 * time.Millisecond // of the database; the log is synced with every write
	// So many looks without a reason are the last. Watchers that fell behind in a
	// burst come back into line by then.
	housekeepingLooks = 10
	// What etcd does by the clock nevertheless, for what nobody told housekeeping of: leases that end.
	byItself = 10 * time.Second
)

// etcd looks ten times a second for watchers that have to be told of the past, and
// has no option for that: a third of what an idle process cost. Its loop is slowed
// down and housekeeping does the same when there is a reason.
//
//go:linkname watchResyncPeriod go.etcd.io/etcd/server/v3/storage/mvcc.watchResyncPeriod
var watchResyncPeriod time.Duration

// syncWatchers sends watchers what they have missed and returns how many are still
// behind. It takes etcd's own locks.
//
//go:linkname syncWatchers go.etcd.io/etcd/server/v3/storage/mvcc.(*watchableStore).syncWatchers
func syncWatchers(store unsafe.Pointer) int

func init() { watchResyncPeriod = byItself }

// storeType is the type of which syncWatchers is a method.
const storeType = "*mvcc.watchableStore"

// housekeeping tells watchers of what was before they began, and writes the database to
// its file, when there is a reason to: a new watch, a write.
//
//	asleep ──write, new watch──▶ awake: a look each housekeepingPeriod ──housekeepingLooks without reason──▶ asleep
type housekeeping struct {
	store  unsafe.Pointer
	commit func()
	room   func() // makes room in a full database
	timer  *time.Timer

	awake   atomic.Bool
	touched atomic.Bool // since the last look
	full    atomic.Bool // a write was refused for want of room since the last look
	written atomic.Bool // since the last commit

	mu        sync.Mutex // held while etcd is looked after
	closed    bool
	idle      int // looks without a reason
	committed time.Time
}

func newHousekeeping(s *etcdserver.EtcdServer) *housekeeping {
	kv := s.KV()
	if t := fmt.Sprintf("%T", kv); t != storeType {
		panic(fmt.Sprintf("storage: etcd's store is a %s, not a %s", t, storeType))
	}
	// An interface that holds a pointer is its type and that pointer.
	u := &housekeeping{store: (*[2]unsafe.Pointer)(unsafe.Pointer(&kv))[1],
		commit: func() { s.Backend().ForceCommit() }, room: func() { makeRoom(s) }}
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

// refused is called after a write for which there was no room.
func (u *housekeeping) refused() {
	u.full.Store(true)
	u.wake(0)
}

// watched is called when a watch has begun: what it has missed it gets at once.
func (u *housekeeping) watched() {
	u.touched.Store(true)
	if !u.wake(0) {
		u.timer.Reset(0)
	}
}

// wake reports whether there was nobody awake.
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

// close returns when etcd is not looked after any more.
func (u *housekeeping) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	u.timer.Stop()
}
