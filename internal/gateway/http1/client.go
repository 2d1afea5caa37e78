// Package http1 is a client of HTTP/1.1 for the gateway's backends. It sends those requests for which net/http's
// Transport does much more than necessary: without TLS, with no body or one of known length. The caller's goroutine
// writes the request and reads the response; only a body that may be slow has a goroutine of its own. An idle
// connection has no goroutine and no buffers. net/http parses the responses.
package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"sync"
	"time"
)

// Config is the configuration of a client.
type Config struct {
	Dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	MostIdle int           // idle connections; more are closed
	IdleTime time.Duration // after which an idle connection is closed
	// HeaderBytes is the maximum size of a response's header.
	HeaderBytes int64
	// Early returns what takes the informational responses to a request with a context, or nil; nil: nothing does.
	Early func(context.Context) func(code int, h textproto.MIMEHeader) error
}

// Client has the connections to one backend. Its methods may be called at any time.
type Client struct {
	cfg Config

	mu    sync.Mutex
	idle  []*conn // by the time of their last use
	timer *time.Timer
	shut  bool // connections are closed when they are idle
}

// New returns a client without connections.
func New(cfg Config) *Client { return &Client{cfg: cfg} }

// Takes reports whether the client can send a request: it must not request a protocol upgrade.
func Takes(r *http.Request) bool {
	return (r.Body == nil || r.Body == http.NoBody || r.ContentLength > 0) && len(r.TransferEncoding) == 0 &&
		r.Trailer == nil && r.Header["Expect"] == nil && r.Method != http.MethodConnect &&
		!strings.Contains(r.Host, "%")
}

// RoundTrip implements http.RoundTripper, for requests that Takes is true for, to the address in their URL.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		res, err := c.try(r)
		again, ok := errors.AsType[unheard](err)
		if !ok {
			return res, err
		}
		if r.Body != nil && r.Body != http.NoBody {
			body, err := r.GetBody()
			if err != nil {
				return nil, again.error
			}
			clone := *r
			clone.Body = body
			r = &clone
		}
	}
}

// unheard is a failure of a connection that was used before, if the backend has not received the request, or may
// receive it twice: usually the backend has closed the connection while the request was being sent.
type unheard struct{ error }

func (c *Client) try(r *http.Request) (*http.Response, error) {
	head := heads.Get().(*[]byte)
	var err error
	if *head, err = appendHead((*head)[:0], r); err != nil {
		putHead(head)
		closeBody(r)
		return nil, err
	}
	conn, err := c.get(r)
	if err != nil {
		putHead(head)
		closeBody(r)
		return nil, err
	}
	e := &exchange{conn: conn, request: r, open: 1}
	e.unwatch = afterFunc(r.Context(), conn.cut)
	switch _, inMemory := r.Body.(Parts); {
	case r.Body == nil || r.Body == http.NoBody:
		closeBody(r)
		n, err := conn.Write(*head)
		putHead(head)
		if err != nil {
			return nil, e.fail(fmt.Errorf("send a request: %w", err), n == 0 || replayable(r))
		}
	case inMemory && r.ContentLength <= small:
		e.open = 2
		e.send(head)
	default:
		e.open = 2
		go e.send(head)
	}
	return e.answer()
}

// afterFunc is context.AfterFunc. A context may do it with less.
func afterFunc(ctx context.Context, f func()) (stop func() bool) {
	if c, ok := ctx.(interface{ AfterFunc(f func()) func() bool }); ok {
		return c.AfterFunc(f)
	}
	return context.AfterFunc(ctx, f)
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// replayable reports whether a backend may get a request twice (RFC 9110, 9.2.2).
func replayable(r *http.Request) bool {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "":
		return true
	}
	return r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil
}

// small is the size of a body that fits into the socket's send buffer: its write does not wait for the backend.
const small = 8 << 10

// most1xx is how many informational responses may precede the final one.
const most1xx = 16

// answer reads the response to a request.
func (e *exchange) answer() (*http.Response, error) {
	c := e.conn
	c.reader = readers.Get().(*bufio.Reader)
	c.reader.Reset(c)
	c.left = c.client.cfg.HeaderBytes
	if _, err := c.reader.Peek(1); err != nil {
		return nil, e.fail(fmt.Errorf("wait for an answer: %w", err), replayable(e.request))
	}
	var res *http.Response
	if res = readPlain(c.reader, e.request); res != nil {
		c.left = -1
		if res.ContentLength == 0 {
			e.ended(true)
			res.Body = http.NoBody
			return res, nil
		}
		e.known = known{c.reader, res.ContentLength}
		e.body, res.Body = &e.known, e
		return res, nil
	}
	for n := 0; ; n++ {
		var err error
		if res, err = http.ReadResponse(c.reader, e.request); err != nil {
			if c.left <= 0 {
				err = fmt.Errorf("the header of the answer has more than %d bytes", c.client.cfg.HeaderBytes)
			}
			return nil, e.fail(fmt.Errorf("read an answer: %w", err), false)
		}
		if res.StatusCode >= http.StatusOK {
			break
		}
		if res.StatusCode < http.StatusContinue {
			return nil, e.fail(fmt.Errorf("the status %03d of an answer is not valid", res.StatusCode), false)
		}
		if res.StatusCode == http.StatusSwitchingProtocols || n == most1xx {
			return nil, e.fail(errors.New("the backend sent an informational response that the client did not request"), false)
		}
		if err := c.client.early(e.request.Context(), res); err != nil {
			return nil, e.fail(err, false)
		}
	}
	c.left = -1
	e.closing = res.Close
	if e.request.Method == http.MethodHead || res.ContentLength == 0 {
		e.ended(true)
		res.Body = http.NoBody
		return res, nil
	}
	e.body, res.Body = res.Body, e
	return res, nil
}

// early passes an informational response on.
func (c *Client) early(ctx context.Context, res *http.Response) error {
	if c.cfg.Early == nil {
		return nil
	}
	pass := c.cfg.Early(ctx)
	if pass == nil {
		return nil
	}
	return pass(res.StatusCode, textproto.MIMEHeader(res.Header))
}

// exchange is one request on its connection, and the body of its response.
type exchange struct {
	conn    *conn
	request *http.Request
	unwatch func() bool // ends the watch of the request's context
	closing bool        // the backend closes the connection
	body    io.Reader   // of the answer
	known   known       // body, if net/http does not read it

	mu     sync.Mutex
	open   int   // the parts that have not ended: the request, the response
	failed bool  // the connection cannot be used again
	sent   error // why the request's body could not be read
	read   error // the result of reads after the end of the response
}

// send writes a request with a body.
func (e *exchange) send(head *[]byte) {
	err := e.write(head)
	putHead(head)
	_ = e.request.Body.Close()
	if err != nil {
		e.mu.Lock()
		e.failed = true
		if bad, ok := errors.AsType[badBody](err); ok {
			e.sent = bad.error
		}
		e.mu.Unlock()
		if e.sent != nil {
			e.conn.abort() // the backend waits for the rest
		}
	}
	e.leave()
}

// badBody is a failure of the client's side.
type badBody struct{ error }

func (b badBody) Unwrap() error { return b.error }

// Parts is the body of a request that is in memory: all of it is written at once.
type Parts interface {
	io.ReadCloser
	// Rest is the part that has not been read.
	Rest() net.Buffers
}

// write writes a request. What is small is joined to the head.
func (e *exchange) write(head *[]byte) error {
	left := e.request.ContentLength
	if p, ok := e.request.Body.(Parts); ok {
		return e.writeParts(head, p)
	}
	buf := bodies.Get().(*[]byte)
	defer bodies.Put(buf)
	have := copy(*buf, *head)
	if have < len(*head) { // a large head
		if _, err := e.conn.Write(*head); err != nil {
			return err
		}
		have = 0
	}
	for left > 0 {
		n, err := e.request.Body.Read((*buf)[have:min(int64(len(*buf)), int64(have)+left)])
		left -= int64(n)
		have += n
		if err != nil && left > 0 {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return badBody{err}
		}
		if have > 0 {
			if _, err := e.conn.Write((*buf)[:have]); err != nil {
				return err
			}
		}
		have = 0
	}
	return nil
}

func (e *exchange) writeParts(head *[]byte, p Parts) error {
	rest := p.Rest()
	size := int64(0)
	for _, b := range rest {
		size += int64(len(b))
	}
	if size != e.request.ContentLength {
		return badBody{errLength}
	}
	if size <= small {
		for _, b := range rest {
			*head = append(*head, b...)
		}
		_, err := e.conn.Write(*head)
		return err
	}
	all := append(net.Buffers{*head}, rest...)
	_, err := all.WriteTo(e.conn.Conn)
	return err
}

var errLength = errors.New("the body does not have the announced length")

// fail ends an exchange without a response. again: the request may be sent to the backend once more.
func (e *exchange) fail(err error, again bool) error {
	e.mu.Lock()
	e.failed = true
	if e.sent != nil {
		err, again = fmt.Errorf("read the body of a request: %w", e.sent), false
	}
	e.mu.Unlock()
	e.conn.abort()
	if cause := context.Cause(e.request.Context()); cause != nil {
		err, again = cause, false
	}
	used := e.conn.used
	e.leave()
	if again && used {
		return unheard{err}
	}
	return err
}

// leave ends one part of an exchange. After the last one the connection can be used again.
func (e *exchange) leave() {
	e.mu.Lock()
	e.open--
	last, failed := e.open == 0, e.failed
	e.mu.Unlock()
	if !last {
		return
	}
	ended := e.unwatch() // first: the next user of the connection must not see the end of this request
	c := e.conn
	r := c.reader
	c.reader = nil
	rest := 0
	if r != nil {
		rest = r.Buffered()
		r.Reset(nil)
		readers.Put(r)
	}
	if failed || !ended || rest > 0 { // more than one response
		c.abort()
		return
	}
	c.used = true
	c.client.put(c)
}

// ended records the end of a response. whole: the connection can be used for another request.
func (e *exchange) ended(whole bool) {
	e.mu.Lock()
	e.failed = e.failed || !whole || e.closing
	failed := e.failed
	e.mu.Unlock()
	if failed {
		e.conn.abort()
	}
	e.leave()
}

// Read implements io.Reader: the body of the response.
func (e *exchange) Read(p []byte) (int, error) {
	if e.read != nil {
		return 0, e.read
	}
	n, err := e.body.Read(p)
	if err != nil {
		e.read = err
		if !errors.Is(err, io.EOF) {
			if cause := context.Cause(e.request.Context()); cause != nil {
				err = cause
			}
		}
		e.ended(errors.Is(e.read, io.EOF))
	}
	return n, err
}

// Close implements io.Closer. A body that was not read to its end ends the connection.
func (e *exchange) Close() error {
	if e.read == nil {
		e.read = errClosed
		e.ended(false)
	}
	return nil
}

var errClosed = errors.New("the body of the answer is closed")
