package sim

import (
	"time"
	"unsafe"
)

// clock is the machine's clock as read by its runtime.
type clock struct{ w *world }

func (c clock) Now() time.Time { return c.w.wall() }

func (c clock) AfterFunc(d time.Duration, do func()) func() { return c.w.after(d, do) }

// wall is the wall clock of the machine; it may be set.
func (w *world) wall() time.Time { return w.loop.now.Add(w.skew) }

// now is what time.Now returns to an agent on the machine: the wall clock, and a monotonic reading,
// which stops while the machine is suspended and is never set.
func (w *world) now() time.Time { return reading(w.wall(), w.loop.now.Sub(epoch)-w.slept) }

// raw is the memory layout of time.Time: there is no other way to make a time with inconsistent
// readings. TestReading fails when it changes.
type raw struct {
	wall uint64 // a flag, 33 bits of seconds since 1885, 30 bits of nanoseconds
	ext  int64  // monotonic nanoseconds
	loc  *time.Location
}

var year1885 = time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC).Unix()

// reading makes a time with a monotonic reading.
func reading(wall time.Time, monotonic time.Duration) (t time.Time) {
	r := (*raw)(unsafe.Pointer(&t))
	r.wall = 1<<63 | uint64(wall.Unix()-year1885)<<30 | uint64(wall.Nanosecond())
	r.ext = int64(monotonic) + 1
	return t
}
