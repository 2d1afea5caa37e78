package server

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// Conns tracks the state of the connections that net/http serves. http.Server.Shutdown drops a request whose header it
// has just read: it may be called only if each connection is idle, or has its request in the handler.
type Conns struct {
	mu      sync.Mutex
	all     map[net.Conn]*HTTPConn
	handed  int           // passed to the server, which has not reported a state yet
	changed chan struct{} // capacity 1
}

// HTTPConn is a connection that net/http serves.
type HTTPConn struct {
	of      *Conns
	Conn    net.Conn
	state   http.ConnState
	h2      bool // it gets GOAWAY, which loses no request
	serving int
}

type connKey struct{}

// NewConns returns one without connections.
func NewConns() *Conns {
	return &Conns{all: map[net.Conn]*HTTPConn{}, changed: make(chan struct{}, 1)}
}

// Context is http.Server.ConnContext.
func (c *Conns) Context(ctx context.Context, conn net.Conn) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handed--
	one := &HTTPConn{of: c, Conn: conn}
	c.all[conn] = one
	return context.WithValue(ctx, connKey{}, one)
}

// Hand counts a connection that is passed to the server (1), or was not accepted by it (-1).
func (c *Conns) Hand(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handed += n
	poke(c.changed)
}

// State is http.Server.ConnState.
func (c *Conns) State(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[conn]; one != nil {
		one.state = state
	}
	if state == http.StateClosed || state == http.StateHijacked {
		delete(c.all, conn)
	}
	poke(c.changed)
}

// ConnOf returns the connection of a request; nil: net/http does not serve it.
func ConnOf(r *http.Request) *HTTPConn {
	one, _ := r.Context().Value(connKey{}).(*HTTPConn)
	return one
}

// Serve records that the handler has a request, until the returned function is called.
func (one *HTTPConn) Serve(r *http.Request) func() {
	one.of.mu.Lock()
	defer one.of.mu.Unlock()
	one.h2 = r.ProtoMajor == 2
	one.serving++
	poke(one.of.changed)
	return func() {
		one.of.mu.Lock()
		defer one.of.mu.Unlock()
		one.serving--
	}
}

// settled reports whether no request is between its header and the handler.
func (c *Conns) settled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handed > 0 {
		return false
	}
	for _, one := range c.all {
		if !one.h2 && one.serving == 0 && one.state != http.StateIdle {
			return false
		}
	}
	return true
}

// Drain waits for requests that are being received, at most until ctx ends.
func (c *Conns) Drain(ctx context.Context) {
	for !c.settled() {
		select {
		case <-c.changed:
		case <-ctx.Done():
			return
		}
	}
}

// Serves reports whether a client, by its address, has a request in the handler.
func (c *Conns) Serves(client string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn, one := range c.all {
		if one.serving > 0 && conn.RemoteAddr().String() == client {
			return true
		}
	}
	return false
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
