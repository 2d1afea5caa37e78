package bodies

import (
	"sync"
	"time"
)

// searchPause is the time between two searches for slow bodies: each looks at all.
const searchPause = 100 * time.Millisecond

// Budget is the memory of all bodies. From 7/8 on it is short: the slowest of those that still arrive end, until 3/4
// are used, so that there is room for others before the memory of these has come back.
type Budget struct {
	most int64

	mu       sync.Mutex
	used     int64
	leaving  int64 // of bodies that were ended, and have not given it back
	arriving []*Upload
	search   time.Time // the next one
}

// NewBudget returns a budget of so many bytes.
func NewBudget(most int64) *Budget { return &Budget{most: most} }

// Used returns the bytes that are in use.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Reserve takes memory, and reports whether there was enough; less than 0 gives it back.
func (b *Budget) Reserve(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.take(n)
}

// take is Reserve. The lock is held.
func (b *Budget) take(n int64) bool {
	if n > 0 && b.used+n > b.most-b.most/8 {
		b.relieve(time.Now())
	}
	if n > 0 && b.used+n > b.most {
		return false
	}
	b.used += n
	return true
}

// relieve ends slow bodies. The lock is held.
func (b *Budget) relieve(now time.Time) {
	bytes := b.used - b.leaving - b.most/4*3
	if bytes <= 0 || now.Before(b.search) {
		return
	}
	b.search = now.Add(searchPause)
	all := make([]Share, len(b.arriving))
	for i, u := range b.arriving {
		if all[i] = u.share; u.ended {
			all[i].Held = 0
		}
	}
	for _, i := range Slowest(all, bytes, now) {
		u := b.arriving[i]
		u.ended = true
		b.leaving += u.share.Held
		u.stop()
	}
}

// Upload is a body that arrives. Its fields belong to the budget's lock.
type Upload struct {
	budget *Budget
	stop   func()
	at     int // in arriving; -1: it has arrived, or will not
	share  Share
	ended  bool // because it was slow
}

// Arrive begins a body. stop ends a read of it, at once; it may be called until Done, and must not block.
func (b *Budget) Arrive(stop func()) *Upload {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := &Upload{budget: b, stop: stop, at: len(b.arriving), share: Share{Rate: Begin(time.Now())}}
	b.arriving = append(b.arriving, u)
	return u
}

// Reserve is that of Body. A body that was ended gets nothing more.
func (u *Upload) Reserve(n int64) bool {
	b := u.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 && u.ended || !b.take(n) {
		return false
	}
	u.share.Held += n
	if u.ended {
		b.leaving += n
	}
	return true
}

// Arrived counts n bytes of the body. It returns false if the body is too slow.
func (u *Upload) Arrived(n int) bool {
	b := u.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	u.share.Rate.Add(n, now)
	return !u.ended && !u.share.Rate.TooSlow(now)
}

// Done is called when the body is not read any more. whole: it has arrived. Its memory may be used further. It may be
// called again.
func (u *Upload) Done(whole bool) {
	b := u.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if u.at < 0 {
		return
	}
	last := len(b.arriving) - 1
	b.arriving[u.at] = b.arriving[last]
	b.arriving[u.at].at = u.at
	b.arriving[last] = nil
	b.arriving = b.arriving[:last]
	u.at = -1
	if whole && u.ended { // just in time
		u.ended = false
		b.leaving -= u.share.Held
	}
}
