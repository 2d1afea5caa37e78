package server

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Counted is a connection that is counted until it is closed.
type Counted struct {
	net.Conn
	Open *atomic.Int64
	once sync.Once
}

// Close implements net.Conn.
func (c *Counted) Close() error {
	c.once.Do(func() { c.Open.Add(-1) })
	return c.Conn.Close()
}

// WriteRead implements forward.Wrapped: nothing was read.
func (c *Counted) WriteRead(io.Writer) (int64, error) { return 0, nil }

// Unwrap implements forward.Wrapped.
func (c *Counted) Unwrap() net.Conn { return c.Conn }

// CloseWrite ends one direction.
func (c *Counted) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Conn.Close()
}
