// Package resend keeps the body of a request that may be sent to more than one endpoint.
package resend

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
)

// most bytes of a body that is kept.
const most = 64 << 10

// Body is the body of a request. It may be sent again as long as no endpoint has read from it, or if it is kept.
type Body struct {
	io.ReadCloser
	kept   []byte
	read   atomic.Bool
	failed atomic.Pointer[error] // why the client's part cannot be read
}

// Keep reads a body of a length (-1: unknown), so that it can be sent again. One that is large, or that cannot be read,
// is not kept. It is called before Attempt.
func (b *Body) Keep(length int64) {
	if length <= 0 || length > most {
		return
	}
	content, err := io.ReadAll(io.LimitReader(b.ReadCloser, length))
	var rest io.Reader = b.ReadCloser
	if err == nil {
		b.kept = content
	} else {
		rest = failing{err}
	}
	b.ReadCloser = joined{io.MultiReader(bytes.NewReader(content), rest), b.ReadCloser}
}

type joined struct {
	io.Reader
	io.Closer
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// Spent reports whether the body cannot be sent again. A request without a body has none (nil), and can.
func (b *Body) Spent() bool { return b != nil && b.kept == nil && b.read.Load() }

// StatusOf returns the status of a failure: the client's, if its body is not valid, or stopped.
func (b *Body) StatusOf(status int) int {
	switch err := b.failed.Load(); {
	case err == nil:
		return status
	case errors.Is(*err, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout
	}
	return http.StatusBadRequest
}

// Attempt is the body for one endpoint; closing it leaves the body open.
func (b *Body) Attempt() io.ReadCloser {
	if b.kept != nil {
		return io.NopCloser(bytes.NewReader(b.kept))
	}
	return offered{b}
}

// Again is Attempt for http.Request.GetBody.
func (b *Body) Again() (io.ReadCloser, error) {
	if b.Spent() {
		return nil, errors.New("the body was sent already")
	}
	return b.Attempt(), nil
}

type offered struct{ b *Body }

func (o offered) Read(p []byte) (int, error) {
	o.b.read.Store(true)
	n, err := o.b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		o.b.failed.Store(&err)
	}
	return n, err
}

func (o offered) Close() error { return nil }
