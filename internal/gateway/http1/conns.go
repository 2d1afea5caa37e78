package http1

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A connection has buffers only while it serves a request.
var (
	readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}
	heads   = sync.Pool{New: func() any { return new(make([]byte, 0, 1<<10)) }} // and small bodies
	bodies  = sync.Pool{New: func() any { return new(make([]byte, 32<<10)) }}
)

// putHead returns a buffer to heads, unless it is large.
func putHead(b *[]byte) {
	if cap(*b) <= 2*small {
		heads.Put(b)
	}
}

// conn is a connection to the backend.
type conn struct {
	net.Conn
	client *Client
	reader *bufio.Reader // while a request is served
	left   int64         // bytes that may be read; negative: any number
	used   bool          // it has served a request
	cut    func()        // abort

	raw   syscall.RawConn // nil: unknown
	quiet bool            // result of look
	since time.Time       // it is idle
}

// Read implements io.Reader.
func (c *conn) Read(p []byte) (int, error) {
	if c.left >= 0 {
		if c.left == 0 {
			return 0, errors.New("too much was read")
		}
		p = p[:min(int64(len(p)), c.left)]
	}
	n, err := c.Conn.Read(p)
	if c.left > 0 {
		c.left -= int64(n)
	}
	return n, err
}

// abort makes pending reads and writes fail.
func (c *conn) abort() { _ = c.Conn.Close() }

// look records whether the backend has neither closed the idle connection nor sent unexpected data.
func (c *conn) look(fd uintptr) bool {
	var one [1]byte
	_, err := unix.Read(int(fd), one[:])
	c.quiet = errors.Is(err, unix.EAGAIN)
	return true
}

// usable reports whether a request can be sent on an idle connection.
func (c *conn) usable() bool {
	if c.raw == nil {
		return true
	}
	c.quiet = false
	return c.raw.Read(c.look) == nil && c.quiet
}

// get returns an idle connection, or opens one.
func (c *Client) get(r *http.Request) (*conn, error) {
	for {
		c.mu.Lock()
		c.shut = false
		n := len(c.idle)
		if n == 0 {
			c.mu.Unlock()
			break
		}
		last := c.idle[n-1]
		c.idle[n-1] = nil
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		if last.usable() {
			return last, nil
		}
		last.abort()
	}
	made, err := c.cfg.Dial(r.Context(), "tcp", r.URL.Host)
	if err != nil {
		return nil, err
	}
	out := &conn{Conn: made, client: c}
	out.cut = out.abort
	if s, ok := made.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			out.raw = raw
		}
	}
	return out, nil
}

// put keeps an idle connection for the next request.
func (c *Client) put(one *conn) {
	one.since = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut || len(c.idle) >= c.cfg.MostIdle {
		one.abort()
		return
	}
	c.idle = append(c.idle, one)
	if c.timer == nil {
		c.timer = time.AfterFunc(c.cfg.IdleTime, c.expire)
	}
}

// expire closes the connections that have been idle for too long. It runs while there are idle ones.
func (c *Client) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	now := time.Now()
	old := 0
	for old < len(c.idle) && now.Sub(c.idle[old].since) >= c.cfg.IdleTime {
		c.idle[old].abort()
		old++
	}
	c.idle = append(c.idle[:0:0], c.idle[old:]...)
	if len(c.idle) > 0 {
		c.timer = time.AfterFunc(c.idle[0].since.Add(c.cfg.IdleTime).Sub(now), c.expire)
	}
}

// CloseIdleConnections closes the connections without a request now, and the others after their request, unless another
// request arrives before.
func (c *Client) CloseIdleConnections() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.idle {
		one.abort()
	}
	c.idle, c.shut = nil, true
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

var _ io.Reader = (*conn)(nil)
