// Package server serves requests of HTTP/1.1 on connections without TLS, with less work than net/http: the server there
// starts a goroutine for each request, which waits for the end of the connection, and wakes another thread for it. Here
// only requests that take long have one. Requests that are not plain are passed to net/http, with their connection:
// other versions, changes of the protocol, bodies of unknown length, and all that is not valid.
package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of connections.
const (
	headBytes = 16 << 10 // of a request that this package serves; and of the parts of a body that come with it
	// unreadBytes of a body that the handler left are read, so that the connection can be used again.
	unreadBytes = 256 << 10
	unreadTime  = 5 * time.Second
	// lingerTime is how long a client that still sends may read the response before the connection ends.
	lingerTime = 500 * time.Millisecond
	// watchAfter is after how long the server watches for the end of the client during a request.
	watchAfter = 10 * time.Millisecond
)

// Server serves connections. Its fields are set before the first one.
type Server struct {
	Handler http.Handler
	// Pass takes a connection over, from the beginning of a request.
	Pass func(net.Conn)
	// Context has the values of the requests' contexts. Its end is that of the requests, too.
	Context context.Context //nolint:containedctx // of the server, as in http.Server
	// HeaderTime is how long a client may send a header, IdleTime how long it may send nothing between two requests.
	HeaderTime, IdleTime time.Duration

	mu      sync.Mutex
	conns   map[*conn]struct{}
	shut    bool          // no connection is taken any more
	closing atomic.Bool   // each connection ends after its request
	changed chan struct{} // capacity 1; while closing, the state of a connection has changed
	all     sync.WaitGroup
}

// The states of a connection.
const (
	fresh   int32 = iota // no byte was read
	idle                 // no byte of the next request was read
	reading              // the head, or it is being passed
	serving
	ended
	passed // another server has it
)

// conn is one connection. One goroutine serves it; the watcher is another one.
type conn struct {
	server *Server
	client net.Conn // what the server was given
	tcp    net.Conn // the connection below it
	raw    syscall.RawConn
	values context.Context //nolint:containedctx // of its requests: that of the server, without its end
	remote string
	state  atomic.Int32

	buf     *[]byte // while there are unread bytes, and while a request is served
	from    int     // unread bytes begin
	to      int     // and end
	waited  error   // result of poll
	pollFor func(uintptr) bool

	written time.Time // when the deadline of writes was set

	mu       sync.Mutex
	timer    *time.Timer
	serving  *request      // nil: no request is being served
	armed    bool          // its body has arrived
	watching chan struct{} // closed when the watcher has ended; nil: there is none
	idleBy   time.Time     // the deadline of reads, if next has set it
}

// request is one request, with all that belongs to it.
type request struct {
	ctx  requestContext
	w    response
	body body
}

var buffers = sync.Pool{New: func() any { return new(make([]byte, headBytes)) }}

// Serve begins to serve a connection, and returns. tcp is the connection below client, which is c itself or wrapped by
// it; its bytes are those of the client.
func (s *Server) Serve(client net.Conn, tcp *net.TCPConn) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		_ = client.Close()
		return
	}
	c := &conn{server: s, client: client, tcp: tcp, raw: raw, values: context.WithoutCancel(s.Context),
		remote: client.RemoteAddr().String()}
	c.pollFor = c.poll
	if !s.add(c) {
		_ = client.Close()
		return
	}
	go c.run()
}

// run serves a connection until it ends.
func (c *conn) run() {
	s := c.server
	defer s.remove(c)
	defer context.AfterFunc(s.Context, c.fail)()
	wait := s.HeaderTime // for the first request, as net/http
	for c.next(wait) {
		wait = s.IdleTime
		if s.closing.Load() {
			break
		}
	}
	c.put()
	if c.state.Load() != passed {
		_ = c.client.Close()
	}
}

func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return false
	}
	if s.conns == nil {
		s.conns = map[*conn]struct{}{}
	}
	s.conns[c] = struct{}{}
	s.all.Add(1)
	return true
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.changes()
	s.all.Done()
}

// becomes changes the state of a connection that has bytes of a request.
func (c *conn) becomes(state int32) {
	c.state.Store(state)
	c.server.changes()
}

// changes wakes Drain up.
func (s *Server) changes() {
	if !s.closing.Load() {
		return
	}
	poke(s.events())
}

func (s *Server) events() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{}, 1)
	}
	return s.changed
}

// Drain ends each connection after its request from now on, and waits until each has had one, and no request is between
// its first byte and the handler; at most until ctx ends.
func (s *Server) Drain(ctx context.Context) {
	s.KeepAlivesOff()
	changed := s.events()
	for !s.Settled() {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Settled reports whether each connection is idle after a request, or has one in the handler.
func (s *Server) Settled() bool {
	settled := true
	s.each(func(c *conn) {
		switch c.state.Load() {
		case fresh, reading:
			settled = false
		}
	})
	return settled
}

// Serves reports whether a client, by its address, has a request in the handler.
func (s *Server) Serves(client string) (serves bool) {
	s.each(func(c *conn) { serves = serves || c.state.Load() == serving && c.remote == client })
	return serves
}

// KeepAlivesOff ends each connection after its request.
func (s *Server) KeepAlivesOff() { s.closing.Store(true) }

// Shutdown ends the connections without a request, waits for the others, and ends them, too, when ctx ends.
func (s *Server) Shutdown(ctx context.Context) {
	s.KeepAlivesOff()
	s.mu.Lock()
	s.shut = true // none is added from now on
	s.mu.Unlock()
	s.each(func(c *conn) {
		if c.state.CompareAndSwap(idle, ended) || c.state.CompareAndSwap(fresh, ended) {
			_ = c.client.Close()
		}
	})
	done := make(chan struct{})
	go func() { s.all.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	s.each(func(c *conn) {
		_ = c.client.Close()
		c.fail() // it may not be watched yet
	})
	<-done
}

func (s *Server) each(do func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		do(c)
	}
}

// put returns the buffer.
func (c *conn) put() {
	if c.buf != nil {
		buffers.Put(c.buf)
		c.buf, c.from, c.to = nil, 0, 0
	}
}

// poll reads the first bytes of a request. While there are none, the connection has no buffer.
func (c *conn) poll(fd uintptr) bool {
	buf, _ := buffers.Get().(*[]byte)
	for {
		n, err := unix.Read(int(fd), *buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			buffers.Put(buf)
			return false
		case err != nil || n <= 0:
			buffers.Put(buf)
			c.waited = io.EOF
			return true
		}
		c.buf, c.from, c.to, c.waited = buf, 0, n, nil
		return true
	}
}

// next serves one request, and reports whether another one may follow.
func (c *conn) next(wait time.Duration) bool {
	if c.from == c.to {
		c.put()
		c.rest(wait)
		if err := c.raw.Read(c.pollFor); err != nil || c.waited != nil {
			return false
		}
	}
	if !c.state.CompareAndSwap(idle, reading) && !c.state.CompareAndSwap(fresh, reading) {
		return false // Shutdown has closed it
	}
	end, ok := c.head()
	if !ok {
		return false
	}
	if end > 0 {
		q := &request{}
		q.ctx.conn = c.values
		if r, plain := parse(&q.ctx, (*c.buf)[c.from:c.from+end]); plain {
			c.from += end
			return c.serve(q, r)
		}
	}
	if !isRequest((*c.buf)[c.from:c.to]) {
		c.refuse()
		return false
	}
	_ = c.tcp.SetDeadline(time.Time{})
	c.server.Pass(&again{Conn: c.client, rest: bytes.Clone((*c.buf)[c.from:c.to])})
	c.becomes(passed)
	return false
}

// sameTime is the part of a time limit by which a deadline may come early: to set one takes longer than most of what is
// done for a request.
const sameTime = 64

// rest sets the deadline for the first byte of the next request, unless it is about the one that is set.
func (c *conn) rest(wait time.Duration) {
	by := time.Now().Add(wait)
	c.mu.Lock()
	defer c.mu.Unlock()
	if early := by.Sub(c.idleBy); early < 0 || early > wait/sameTime {
		c.idleBy = by
		_ = c.tcp.SetReadDeadline(by)
	}
}

// readBy sets another deadline of reads.
func (c *conn) readBy(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setRead(at)
}

// setRead is readBy with the lock held.
func (c *conn) setRead(at time.Time) {
	c.idleBy = time.Time{}
	_ = c.tcp.SetReadDeadline(at)
}

// head reads the rest of a head, and returns its length; 0: it does not fit into the buffer, or is not plain. One
// empty line before it is left out (RFC 9112, 2.2), however its bytes arrive.
func (c *conn) head() (end int, ok bool) {
	for searched, waits, empty := 0, false, false; ; {
		if !empty && searched <= 1 && bytes.HasPrefix((*c.buf)[c.from:c.to], []byte("\r\n")) {
			c.from += 2
			searched, empty = 0, true
		}
		begun := (*c.buf)[c.from:c.to]
		if end = headEnd(begun, searched); end > 0 || odd(begun, searched) || len(begun) == len(*c.buf) {
			return end, true
		}
		if !waits {
			waits = true
			c.readBy(time.Now().Add(c.server.HeaderTime))
		}
		if c.from > 0 {
			c.from, c.to = 0, copy(*c.buf, begun)
		}
		searched = c.to
		n, err := c.tcp.Read((*c.buf)[c.to:])
		if err != nil {
			return 0, false
		}
		c.to += n
	}
}

// refuse answers what is not a request of HTTP, as net/http does, and ends the connection.
func (c *conn) refuse() {
	_ = c.tcp.SetWriteDeadline(time.Now().Add(lingerTime))
	const text = "400 Bad Request"
	if _, err := io.WriteString(c.tcp, "HTTP/1.1 "+text+"\r\nContent-Type: text/plain; charset=utf-8\r\n"+
		"Connection: close\r\n\r\n"+text); err == nil {
		c.linger()
	}
}

// serve serves a request whose head was read.
func (c *conn) serve(q *request, r *http.Request) (more bool) {
	defer q.ctx.end()
	r.RemoteAddr = c.remote
	w := &q.w
	w.c, w.request, w.of, w.length = c, r, q, -1
	if r.ContentLength > 0 {
		q.body.c, q.body.of, q.body.left = c, q, r.ContentLength
		r.Body, w.left = &q.body, &q.body
	}
	c.begin(q)
	c.becomes(serving)
	finished := c.handle(w, r)
	c.end()
	q.ctx.end()
	if finished {
		finished = w.finish()
	}
	w.release()
	if !w.left.discard(finished) {
		if finished {
			c.linger()
		}
		return false
	}
	if w.closing {
		return false
	}
	if c.from == c.to {
		c.put()
	}
	c.becomes(idle)
	return true
}

// handle calls the handler. A panic ends the connection, as with net/http: that is how a handler ends a response that
// is not complete.
func (c *conn) handle(w *response, r *http.Request) (finished bool) {
	defer func() {
		if !finished {
			_ = recover()
		}
	}()
	c.server.Handler.ServeHTTP(w, r)
	return true
}

// begin marks the beginning of a request.
func (c *conn) begin(q *request) {
	c.mu.Lock()
	c.serving = q
	if q.w.left == nil {
		c.arm()
	}
	c.mu.Unlock()
	if c.server.Context.Err() != nil {
		q.ctx.end()
	}
}

// arrived is called when the body was read.
func (c *conn) arrived() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving != nil {
		c.serving.body.over = true
		c.arm()
	}
}

// arm has the connection watched after a while. The lock is held.
func (c *conn) arm() {
	c.armed = true
	if c.timer == nil {
		c.timer = time.AfterFunc(watchAfter, c.watch)
		return
	}
	c.timer.Reset(watchAfter)
}

// left reports whether the peer of a socket has ended the connection, or its direction, also if bytes before that end
// were not read yet.
func left(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for {
		switch n, err := unix.Poll(p, 0); {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return true
		default:
			return n > 0 && p[0].Revents != 0
		}
	}
}

// watch cancels the request when the client ends the connection. It returns when the request ends.
func (c *conn) watch() {
	c.mu.Lock()
	if !c.armed || c.watching != nil {
		c.mu.Unlock()
		return
	}
	over, q := make(chan struct{}), c.serving
	c.watching = over
	c.setRead(time.Time{})
	c.mu.Unlock()
	defer close(over)
	gone := false
	err := c.raw.Read(func(fd uintptr) bool {
		gone = left(fd)
		return gone
	})
	if gone || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		q.ctx.end()
	}
}

// end marks the end of a request, and ends its watcher.
func (c *conn) end() {
	c.mu.Lock()
	c.serving, c.armed = nil, false
	over := c.watching
	c.watching = nil
	if c.timer != nil {
		c.timer.Stop()
	}
	if over != nil {
		c.setRead(time.Unix(1, 0))
	}
	c.mu.Unlock()
	if over != nil {
		<-over // its read has the deadline
	}
}

// ifServing calls a function unless the request has ended: another goroutine may still read its body then.
func (c *conn) ifServing(q *request, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving == q {
		do()
	}
}

// fail ends the request, if there is one.
func (c *conn) fail() {
	c.mu.Lock()
	q := c.serving
	c.mu.Unlock()
	if q != nil {
		q.ctx.end()
	}
}

// linger lets a client that still sends read the response.
func (c *conn) linger() {
	if half, ok := c.tcp.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	c.readBy(time.Now().Add(lingerTime))
	_, _ = io.Copy(io.Discard, onlyReader{c.tcp})
}

// onlyReader hides other methods.
type onlyReader struct{ io.Reader }

// again is a connection whose first bytes are read again.
type again struct {
	net.Conn
	rest []byte
}

// Read implements net.Conn.
func (a *again) Read(p []byte) (int, error) {
	if len(a.rest) > 0 {
		n := copy(p, a.rest)
		if a.rest = a.rest[n:]; len(a.rest) == 0 {
			a.rest = nil
		}
		return n, nil
	}
	return a.Conn.Read(p)
}

// Unwrap is the connection itself, for Reset.
func (a *again) Unwrap() net.Conn { return a.Conn }

// CloseWrite ends one direction.
func (a *again) CloseWrite() error {
	if w, ok := a.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return a.Close()
}
