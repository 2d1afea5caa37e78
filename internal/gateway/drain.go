package gateway

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// newcomer is how long a port that ends waits for the first request of a connection.
const newcomer = time.Second

// clientConns tracks the state of the connections of a port. http.Server.Shutdown drops a request whose header it has
// just read: it may be called only if each connection is idle, or has its request in the handler.
type clientConns struct {
	mu      sync.Mutex
	all     map[net.Conn]*clientConn
	handed  int           // passed to the server, which has not reported a state yet
	changed chan struct{} // capacity 1
}

type clientConn struct {
	of      *clientConns
	conn    net.Conn
	state   http.ConnState
	h2      bool // it gets GOAWAY, which loses no request
	serving int
}

type clientConnKey struct{}

func newClientConns() *clientConns {
	return &clientConns{all: map[net.Conn]*clientConn{}, changed: make(chan struct{}, 1)}
}

// context is http.Server.ConnContext.
func (c *clientConns) context(ctx context.Context, conn net.Conn) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handed--
	one := &clientConn{of: c, conn: conn}
	c.all[conn] = one
	return context.WithValue(ctx, clientConnKey{}, one)
}

// hand counts a connection that is passed to the server (1), or was not accepted by it (-1).
func (c *clientConns) hand(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handed += n
	poke(c.changed)
}

// state is http.Server.ConnState.
func (c *clientConns) state(conn net.Conn, state http.ConnState) {
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

// serve records that the handler has a request, until the returned function is called.
func serve(r *http.Request) func() {
	one, _ := r.Context().Value(clientConnKey{}).(*clientConn)
	if one == nil {
		return func() {}
	}
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
func (c *clientConns) settled() bool {
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

// drain waits for requests that are being received.
func (c *clientConns) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, newcomer)
	defer cancel()
	for !c.settled() {
		select {
		case <-c.changed:
		case <-ctx.Done():
			return
		}
	}
}
