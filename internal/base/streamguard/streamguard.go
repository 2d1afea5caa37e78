// Package streamguard ends SPDY connections of clients that open more streams than their request needs. The streaming
// library (k8s.io/cri-streaming) waits for ever with a stream that it does not expect, and neither notices the end of
// that connection nor closes its descriptor. It also closes connections so that nothing that was written is lost. The
// streaming servers use it.
package streamguard

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// ErrTooMany is the error of a connection whose client opened too many streams.
var ErrTooMany = errors.New("too many streams in one connection")

// Guard is the ResponseWriter of a request that may be upgraded to SPDY.
type Guard struct {
	http.ResponseWriter

	streams func(protocol string) int
	left    chan struct{} // closed when the connection is, or nothing more can be read from it
	once    sync.Once

	mu   sync.Mutex
	conn net.Conn
	in   *conn
	seen int64 // bytes read at the last call of Left
}

// New returns a ResponseWriter for w. streams returns how many streams a client may open with the protocol that was
// chosen, which may be empty.
func New(w http.ResponseWriter, streams func(protocol string) int) *Guard {
	return &Guard{ResponseWriter: w, streams: streams, left: make(chan struct{})}
}

// Streams are those of a command or an attach that a client requests.
type Streams struct{ Stdin, Stdout, Stderr, TTY bool }

// Most returns how many streams a client opens with a protocol of remote commands: also one for errors, and one for
// sizes of the terminal.
func (s Streams) Most(protocol string) int {
	n := 1
	for _, on := range []bool{s.Stdin, s.Stdout, s.Stderr, s.TTY && sizes(protocol)} {
		if on {
			n++
		}
	}
	return n
}

// sizes reports whether a protocol has a stream for sizes of the terminal.
func sizes(protocol string) bool {
	return protocol != "" && protocol != remotecommand.StreamProtocolV1Name &&
		protocol != remotecommand.StreamProtocolV2Name
}

// Hijack implements http.Hijacker.
func (g *Guard) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := g.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, errors.ErrUnsupported
	}
	most := g.streams(g.Header().Get(httpstream.HeaderProtocolVersion))
	c, rw, err := h.Hijack()
	if err != nil {
		return nil, nil, fmt.Errorf("hijack: %w", err)
	}
	guarded := &conn{Conn: c, in: watched{rw.Reader, g}, left: most, ends: g.end}
	g.mu.Lock()
	g.conn, g.in = c, guarded
	g.mu.Unlock()
	return guarded, bufio.NewReadWriter(bufio.NewReader(guarded), rw.Writer), nil
}

// Unwrap returns a ResponseWriter that counts no streams, for WebSockets.
func (g *Guard) Unwrap() http.ResponseWriter { return unguarded{g.ResponseWriter, g} }

// unguarded is a ResponseWriter of which only the end of the connection is noticed.
type unguarded struct {
	http.ResponseWriter
	guard *Guard
}

// Hijack implements http.Hijacker.
func (u unguarded) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := u.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, errors.ErrUnsupported
	}
	c, rw, err := h.Hijack()
	if err != nil {
		return nil, nil, fmt.Errorf("hijack: %w", err)
	}
	return c, bufio.NewReadWriter(bufio.NewReader(watched{rw.Reader, u.guard}), rw.Writer), nil
}

// watched is a reader whose end a Guard notices.
type watched struct {
	io.Reader
	guard *Guard
}

// Read implements io.Reader.
func (w watched) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if err != nil {
		w.guard.end()
	}
	return n, err //nolint:wrapcheck // io.Reader
}

func (g *Guard) end() { g.once.Do(func() { close(g.left) }) }

// Context ends with ctx, and when the client has left. What it has sent before may not be taken yet: with input, the
// context ends a while later. The library notices the end of a connection only when it writes, which may be never.
func (g *Guard) Context(ctx context.Context, input bool, while time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		look := time.NewTicker(while)
		defer look.Stop()
		left := g.left
		for {
			select {
			case <-ctx.Done():
				return
			case <-left:
				if !input {
					cancel()
					return
				}
				left = nil
				look.Reset(while)
			case <-look.C:
				if left == nil || g.Left() {
					cancel()
					return
				}
			}
		}
	}()
	return ctx, cancel
}

// Left reports whether the client has closed a TCP connection, and nothing was read from it since the last call. The
// library does not notice the end of a connection while a stream that is not read holds it up.
func (g *Guard) Left() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in == nil {
		return false
	}
	before := g.seen
	g.seen = g.in.read.Load()
	return g.seen == before && closedByPeer(g.conn)
}

// closedByPeer reports whether the peer of a TCP connection, or of one with TLS above it, sends nothing more.
func closedByPeer(c net.Conn) bool {
	for {
		above, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = above.NetConn()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err == nil && info.State != tcpEstablished
	})
	return err == nil && closed
}

// tcpEstablished is the kernel's state of a connection that both sides may use (TCP_ESTABLISHED).
const tcpEstablished = 1

// Close closes the connection if it was hijacked through g. The handler that served it has ended.
func (g *Guard) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in != nil {
		_ = g.in.Close() // usually the library has
	}
}

// Frames of SPDY/3.1 begin with a header of eight bytes: control bit and version, type, flags, and length.
const (
	headerSize = 8
	controlBit = 0x80
	synStream  = 1
	sizeMask   = 1<<24 - 1
)

// conn counts the streams that the client opens.
type conn struct {
	net.Conn

	in   io.Reader
	read atomic.Int64 // bytes
	left int          // streams that the client may still open
	ends func()       // called when it is closed; nil: nothing

	refused atomic.Bool // the client opened too many
	once    sync.Once   // it is closed

	header [headerSize]byte
	got    int // bytes of header that have arrived
	skip   int // bytes until the next frame
}

// Read returns what has arrived. It has no bytes of a frame that opens one stream too many.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	c.read.Add(int64(n))
	if !c.allows(b[:n]) {
		c.refused.Store(true)
		return 0, ErrTooMany
	}
	return n, err //nolint:wrapcheck // io.Reader
}

// Close implements net.Conn. The client gets everything that was written, unless it is refused.
func (c *conn) Close() error {
	c.once.Do(func() {
		if c.ends != nil {
			c.ends()
		}
		if c.refused.Load() {
			_ = c.Conn.Close()
		} else {
			linger(c.Conn)
		}
	})
	return nil
}

// allows follows the frames, and reports whether all streams that they open are allowed.
func (c *conn) allows(b []byte) bool {
	for len(b) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(b))
			c.skip -= n
			b = b[n:]
			continue
		}
		n := copy(c.header[c.got:], b)
		c.got += n
		b = b[n:]
		if c.got < headerSize {
			return true
		}
		c.got, c.skip = 0, int(binary.BigEndian.Uint32(c.header[4:])&sizeMask)
		if c.header[0]&controlBit != 0 && binary.BigEndian.Uint16(c.header[2:]) == synStream {
			if c.left--; c.left < 0 {
				return false
			}
		}
	}
	return true
}
