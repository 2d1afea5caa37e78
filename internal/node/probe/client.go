package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// maxHeader is the maximum size of a response's header in bytes, as in net/http.
const maxHeader = 10 << 20

// oneRequest is a connection for each request, in the goroutine of the caller. net/http starts three for each, which
// costs more than the kernel's part of a probe. It sends the same as net/http with keep-alives disabled and
// http.Client.Timeout set to the deadline of the request's context; TLS is left to net/http.
type oneRequest struct{}

// RoundTrip implements http.RoundTripper.
func (oneRequest) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "https" {
		return roundTrip(req, Transport().RoundTrip)
	}
	return roundTrip(req, exchange)
}

// roundTrip gives the errors of send the texts of http.Client.
func roundTrip(req *http.Request, send func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	res, err := send(req)
	if err != nil {
		return nil, late(req.Context(), err, "Client.Timeout exceeded while awaiting headers")
	}
	res.Body = &inTime{res.Body, req.Context()}
	return res, nil
}

// inTime is a body whose Read returns the timeout error after the deadline.
type inTime struct {
	io.ReadCloser
	ctx context.Context //nolint:containedctx // of the request, as long as its answer is read
}

// Read implements io.Reader.
func (b *inTime) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = late(b.ctx, err, "Client.Timeout or context cancellation while reading body")
	}
	return n, err
}

// late is the error of a request; after the deadline it has the text of http.Client.
func late(ctx context.Context, err error, what string) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w (%s)", context.DeadlineExceeded, what)
}

// checkHeader refuses headers that net/http's client does not send.
func checkHeader(h http.Header) error {
	for name, values := range h {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("net/http: invalid header field name %q", name)
		}
		if !slices.ContainsFunc(values, func(v string) bool { return !httpguts.ValidHeaderFieldValue(v) }) {
			continue
		}
		return fmt.Errorf("net/http: invalid header field value for %q", name)
	}
	return nil
}

// exchange sends the request and reads the header of its answer. Closing the body closes the connection.
func exchange(req *http.Request) (*http.Response, error) {
	text, err := requestText(req)
	if err != nil {
		return nil, err
	}
	if req.URL.Host == "" { // of a path like "a:b", which has no host; dialling it would reach the node itself
		return nil, errors.New("http: no Host in request URL")
	}
	port := req.URL.Port()
	if port == "" {
		port = "80"
	}
	d := dialer(0)
	d.KeepAlive = -1 // the request has ended before the first probe would be sent
	conn, err := d.DialContext(req.Context(), "tcp", net.JoinHostPort(req.URL.Hostname(), port))
	if err != nil {
		return nil, err
	}
	return readAnswer(req, conn, conn, text)
}

// readAnswer sends the text of a request, and reads the header of its answer from a connection, or from what has come
// from it already and the rest.
func readAnswer(req *http.Request, conn net.Conn, from io.Reader, text []byte) (_ *http.Response, err error) {
	b := &body{ReadCloser: http.NoBody, conn: conn, from: limited{from, maxHeader},
		buffered: buffers.Get().(*bufio.Reader)}
	b.buffered.Reset(&b.from)
	// Closing would wait for the peer (SO_LINGER), a deadline ends reads and writes at once.
	b.stop = context.AfterFunc(req.Context(), func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if err != nil {
			_ = b.Close()
		}
	}()
	if len(text) > 0 {
		if _, err := conn.Write(text); err != nil {
			return nil, err
		}
	}
	if _, err := b.buffered.Peek(1); err != nil {
		return nil, err
	}
	for {
		res, err := http.ReadResponse(b.buffered, req)
		if err != nil {
			return nil, fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", err)
		}
		if code := res.StatusCode; code < 100 || code >= 200 || code == http.StatusSwitchingProtocols {
			b.ReadCloser, b.from.left, res.Body = res.Body, -1, b
			return res, nil
		}
	}
}

// buffers are readers that no connection uses.
var buffers = sync.Pool{New: func() any { return bufio.NewReader(nil) }}

// limited reads from a connection, the header of an answer with a limit.
type limited struct {
	from io.Reader
	left int // bytes that the header may still have; -1: it is complete
}

func (l *limited) Read(p []byte) (int, error) {
	switch {
	case l.left < 0:
		return l.from.Read(p)
	case l.left == 0:
		return 0, fmt.Errorf("net/http: server response headers exceeded %d bytes; aborted", maxHeader)
	}
	n, err := l.from.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// body is what follows the header of an answer. Closing it closes the connection.
type body struct {
	io.ReadCloser
	conn     net.Conn
	from     limited
	buffered *bufio.Reader
	stop     func() bool // of the function that ends reads and writes when ctx ends
}

// Close implements io.Closer.
func (b *body) Close() error {
	if b.buffered == nil {
		return nil
	}
	b.stop()
	b.buffered.Reset(nil)
	buffers.Put(b.buffered)
	b.buffered, b.ReadCloser = nil, http.NoBody
	return b.conn.Close()
}
