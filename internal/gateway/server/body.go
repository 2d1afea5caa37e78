package server

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// body is the body of a request, of known length.
type body struct {
	c  *conn
	of *request

	over bool // it has arrived, or was stopped; guarded by c.mu

	mu     sync.Mutex // held while it is read
	left   int64
	closed bool
	failed error
	waited time.Time // when the deadline of reads was set
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, http.ErrBodyReadAfterClose
	case b.failed != nil:
		return 0, b.failed
	case b.left == 0:
		return 0, io.EOF
	}
	n, err := b.read(p)
	if b.left == 0 {
		b.c.arrived()
		return n, io.EOF
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	b.failed = err
	return n, err
}

// read takes what came with the head first. The lock is held.
func (b *body) read(p []byte) (n int, err error) {
	c := b.c
	p = p[:min(int64(len(p)), b.left)]
	if c.from < c.to {
		n = copy(p, (*c.buf)[c.from:c.to])
		c.from += n
	} else {
		b.patient()
		n, err = c.tcp.Read(p)
	}
	b.left -= int64(n)
	return n, err
}

// patient sets the deadline of a read for a handler that has called Parts. The lock is held.
func (b *body) patient() {
	limit := b.of.w.patience
	if limit == 0 {
		return
	}
	if now := time.Now(); now.Sub(b.waited) > limit/sameTime {
		b.waited = now
		b.c.ifServing(b.of, func() {
			if !b.over {
				b.c.setRead(now.Add(limit))
			}
		})
	}
}

// stop ends reads for Whole, but for a body that has arrived.
func (b *body) stop() {
	b.c.ifServing(b.of, func() {
		if !b.over {
			b.over = true
			b.c.setRead(time.Unix(1, 0))
		}
	})
}

// Close implements io.Closer. The server reads the rest.
func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// unread reports whether the handler left more than is read for it.
func (b *body) unread() bool {
	if b == nil || !b.mu.TryLock() {
		return b != nil // another goroutine reads
	}
	defer b.mu.Unlock()
	return b.left > unreadBytes || b.failed != nil
}

// end ends the reads of the handler and of its goroutines, and locks the body.
func (b *body) end() {
	if !b.mu.TryLock() { // another goroutine still reads: its read ends now
		b.c.readBy(time.Unix(1, 0))
		b.mu.Lock()
	}
	b.closed = true
}

// discard ends the reads of the body. It reads what the handler has left, if the connection may be used again, and
// reports whether it can.
func (b *body) discard(again bool) bool {
	if b == nil {
		return again
	}
	b.end()
	defer b.mu.Unlock()
	if b.left == 0 || !again {
		return again
	}
	if b.left > unreadBytes || b.failed != nil && !errors.Is(b.failed, os.ErrDeadlineExceeded) {
		return false
	}
	b.c.readBy(time.Now().Add(unreadTime))
	buf, ok := buffers.Get().(*[]byte)
	if !ok {
		return false
	}
	defer buffers.Put(buf)
	for b.left > 0 {
		if _, err := b.read(*buf); err != nil {
			return false
		}
	}
	return true
}
