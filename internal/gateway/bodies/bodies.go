// Package bodies keeps the bodies of inference requests in memory until a server has them, in buffers that are reused:
// the pages of a new buffer for a prompt of 220 KB cost more processor time than everything else that is done for the
// request. A Budget limits their memory, and ends bodies that arrive slowly before others get none.
package bodies

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// sizes of the buffers that are kept for the next body. Larger ones are rare, and left to the garbage collector, which
// also removes those of the pools that are not used.
var sizes = [...]int64{8 << 10, 64 << 10, 256 << 10, 1 << 20}

var pools [len(sizes)]sync.Pool // of *[]byte

// classOf returns the class of the smallest buffer for a body; len(sizes): there is none.
func classOf(size int64) int {
	for i, s := range sizes {
		if size <= s {
			return i
		}
	}
	return len(sizes)
}

// memory is one allocation. It returns to its pool when it has no user left.
type memory struct {
	all   *[]byte
	class int
	users atomic.Int32 // the body, and its readers
	lost  atomic.Bool  // something may use it without being counted
}

func newMemory(size int64) *memory {
	m := &memory{class: classOf(size)}
	m.users.Store(1)
	if m.class == len(sizes) {
		m.all = new(make([]byte, size))
		return m
	}
	if p, ok := pools[m.class].Get().(*[]byte); ok {
		m.all = p
		return m
	}
	m.all = new(make([]byte, sizes[m.class]))
	return m
}

func (m *memory) leave() {
	if m.users.Add(-1) == 0 && !m.lost.Load() && m.class < len(sizes) {
		pools[m.class].Put(m.all)
	}
}

// Body is the body of one request. Its methods may be called by one goroutine at a time; its readers may outlive it.
type Body struct {
	// Reserve takes bytes of what all bodies may have, and reports whether there are as many. Less than 0: they are
	// given back.
	Reserve func(bytes int64) bool

	mem  *memory
	n    int // bytes of the body
	held int64
}

// Begun reports whether the body has memory.
func (b *Body) Begun() bool { return b.mem != nil }

// Bytes returns the body. They are valid until Release.
func (b *Body) Bytes() []byte {
	if b.mem == nil {
		return nil
	}
	return (*b.mem.all)[:b.n:b.n]
}

// Free is the memory behind the body, to read into.
func (b *Body) Free() []byte {
	if b.mem == nil {
		return nil
	}
	return (*b.mem.all)[b.n:]
}

// Add makes the first n bytes of Free a part of the body.
func (b *Body) Add(n int) { b.n += n }

// Grow gives the body memory for at least size bytes. It returns false, and changes nothing, if that is too much.
func (b *Body) Grow(size int64) bool {
	if class := classOf(size); class < len(sizes) {
		size = sizes[class]
	}
	if size <= b.held {
		return true
	}
	if !b.Reserve(size - b.held) {
		return false
	}
	b.held = size
	m := newMemory(size)
	if b.mem != nil {
		copy(*m.all, b.Bytes())
		b.mem.leave()
	}
	b.mem = m
	return true
}

// Reader returns a reader of parts, which are in the body's memory or not in a pool. The memory is not used again
// before the reader is closed. Without any bytes it returns nil.
func (b *Body) Reader(parts ...[]byte) io.ReadCloser {
	r := &reader{mem: b.mem}
	for _, p := range parts {
		if len(p) > 0 {
			r.rest = append(r.rest, p)
		}
	}
	if len(r.rest) == 0 || b.mem == nil {
		return nil
	}
	b.mem.users.Add(1)
	return r
}

// Lose leaves the memory to the garbage collector: others may use it for an unknown time.
func (b *Body) Lose() {
	if b.mem != nil {
		b.mem.lost.Store(true)
	}
}

// Release ends the use of the body. It may be called again.
func (b *Body) Release() {
	if b.held != 0 {
		b.Reserve(-b.held)
	}
	if b.mem != nil {
		b.mem.leave()
	}
	b.mem, b.n, b.held = nil, 0, 0
}

// reader implements http1.Parts.
type reader struct {
	mem    *memory
	rest   net.Buffers
	closed atomic.Bool
}

var errClosed = errors.New("the body of the request is closed")

// Read implements io.Reader. Who reads may do so after Close: net/http's Transport has other goroutines for it.
func (r *reader) Read(p []byte) (int, error) {
	r.mem.lost.Store(true)
	if r.closed.Load() {
		return 0, errClosed
	}
	return r.rest.Read(p)
}

// Rest implements http1.Parts. The parts may be used until Close.
func (r *reader) Rest() net.Buffers { return slices.Clone(r.rest) }

// Close implements io.Closer.
func (r *reader) Close() error {
	if !r.closed.Swap(true) {
		r.mem.leave()
	}
	return nil
}
