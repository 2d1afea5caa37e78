package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Limits of streams.
const (
	Idle        = time.Hour // without a byte in either direction
	relayBuffer = 16 << 10  // bytes at once
)

// buffer is memory that a connection has only while it forwards data, so that idle connections cost little.
type buffer struct {
	bytes []byte
	all   *[]byte
	of    *sync.Pool
}

func (b buffer) release() { b.of.Put(b.all) }

// relayBuffers are for streams, and datagrams for answers over UDP.
//
//nolint:gochecknoglobals // pools of the process
var (
	relayBuffers = sync.Pool{New: func() any { return new(make([]byte, relayBuffer)) }}
	datagrams    = sync.Pool{New: func() any { return new(make([]byte, datagram)) }}
)

// readWhenThere waits for a datagram, and reads it.
func readWhenThere(raw syscall.RawConn) (buffer, error) { return readFrom(raw, &datagrams) }

// readFrom waits until there is something to read, and only then takes a buffer for it. Of a stream, no bytes without
// an error are its end.
func readFrom(raw syscall.RawConn, pool *sync.Pool) (b buffer, err error) {
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		all, ok := pool.Get().(*[]byte)
		if !ok {
			failed = errors.New("not a buffer")
			return true
		}
		n, e := syscall.Read(int(fd), *all)
		for errors.Is(e, syscall.EINTR) {
			n, e = syscall.Read(int(fd), *all)
		}
		switch {
		case errors.Is(e, syscall.EAGAIN):
			pool.Put(all)
			return false
		case e != nil:
			pool.Put(all)
			failed = e
			return true
		}
		b = buffer{(*all)[:n], all, pool}
		return true
	})
	if err = errors.Join(err, failed); err != nil {
		return buffer{}, err
	}
	return b, nil
}

// relay forwards the bytes of two connections to each other.
type relay struct {
	seen  *Record
	began time.Time
	last  atomic.Int64 // when the last bytes arrived, since began
}

// Relay forwards data between a client and a backend in both directions. It ends when both directions have ended, when
// no data has arrived for Idle, or when ctx ends; it may close both connections, but the caller must close them in any
// case.
func Relay(ctx context.Context, client, backend net.Conn, seen *Record) {
	(&relay{seen: seen, began: time.Now()}).run(ctx, client, backend)
}

func (r *relay) run(ctx context.Context, client, backend net.Conn) {
	closeBoth := func() { _ = client.Close(); _ = backend.Close() }
	stop := context.AfterFunc(ctx, closeBoth)
	defer stop()
	var mu sync.Mutex // the timer is set before it is used
	mu.Lock()
	var idle *time.Timer
	idle = time.AfterFunc(Idle, func() {
		mu.Lock()
		defer mu.Unlock()
		if left := Idle - (time.Since(r.began) - time.Duration(r.last.Load())); left > 0 {
			idle.Reset(left)
			return
		}
		r.seen.Problem("nothing has come for " + Idle.String())
		closeBoth()
	})
	mu.Unlock()
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		idle.Stop()
	}()
	var wg sync.WaitGroup
	wg.Go(func() { r.half(backend, client, func(n int64) { r.seen.moved(n, 0) }) })
	r.half(client, backend, func(n int64) { r.seen.moved(0, n) })
	wg.Wait()
}

// half copies one direction, then announces the end to the other side.
func (r *relay) half(to, from net.Conn, moved func(int64)) {
	err := r.copy(to, from, moved)
	if w, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = w.CloseWrite()
		return
	}
	_ = to.Close()
	_ = from.Close()
}

func (r *relay) copy(to, from net.Conn, moved func(int64)) error {
	if w, ok := from.(Wrapped); ok {
		n, err := w.WriteRead(to)
		if moved(n); err != nil {
			return err
		}
	}
	next := reader(from)
	for {
		b, err := next()
		if err == nil && len(b.bytes) > 0 {
			r.last.Store(int64(time.Since(r.began)))
			_, err = to.Write(b.bytes)
			moved(int64(len(b.bytes)))
		} else if err == nil {
			err = io.EOF
		}
		if b.all != nil {
			b.release()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// reader returns what reads a connection part by part; an empty part is its end.
func reader(c net.Conn) func() (buffer, error) {
	if raw := rawOf(c); raw != nil {
		return func() (buffer, error) { return readFrom(raw, &relayBuffers) }
	}
	all := make([]byte, relayBuffer)
	held := buffer{all: nil}
	return func() (buffer, error) {
		for {
			n, err := c.Read(all)
			if n == 0 && err == nil {
				continue
			}
			if n > 0 {
				err = nil // the error occurs again
			}
			held.bytes = all[:n]
			return held, err
		}
	}
}

// Wrapped is a connection whose bytes are those of another one, except for some that were read from it already.
type Wrapped interface {
	net.Conn
	// WriteRead writes the bytes that were read already, and drops them.
	WriteRead(to io.Writer) (int64, error)
	// Unwrap is the connection from which the rest is read; nil: this one.
	Unwrap() net.Conn
}

// rawOf is the socket of a connection whose bytes are all its own, or nil.
func rawOf(c net.Conn) syscall.RawConn {
	switch c := c.(type) {
	case Wrapped:
		return rawOf(c.Unwrap())
	case *net.TCPConn:
		if raw, err := c.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}
