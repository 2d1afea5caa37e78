package streamguard

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// lingerFor is how long a connection that was closed here still takes what its peer sends, if the peer does not close
// it, too.
const lingerFor = 10 * time.Second

// linger ends a connection so that the peer gets everything that was written to it. If the kernel closes a connection
// while input is unread, such as that of a command that ended without reading it, it resets the connection, and the
// peer, or a proxy in between, may lose the end of the output and the exit code. Therefore the writing side is closed
// first, and the input discarded until the peer closes its side, too.
func linger(c net.Conn) {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		_ = c.Close()
		return
	}
	go func() {
		_ = c.SetReadDeadline(time.Now().Add(lingerFor))
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}()
}

// Lingering is a ResponseWriter whose connection, once it is hijacked, is closed as linger does.
type Lingering struct{ http.ResponseWriter }

// Hijack implements http.Hijacker.
func (l Lingering) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := l.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, errors.ErrUnsupported
	}
	c, rw, err := h.Hijack()
	if err != nil {
		return nil, nil, fmt.Errorf("hijack: %w", err)
	}
	return &lingering{Conn: c}, rw, nil
}

// Unwrap returns the ResponseWriter.
func (l Lingering) Unwrap() http.ResponseWriter { return l.ResponseWriter }

type lingering struct {
	net.Conn

	once sync.Once
}

// Close implements net.Conn.
func (c *lingering) Close() error {
	c.once.Do(func() { linger(c.Conn) })
	return nil
}
