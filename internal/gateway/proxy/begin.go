package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// beginnings are buffers for Begin.
var beginnings = sync.Pool{New: func() any { return new([512]byte) }}

// Begin reads the beginning of a response's body, which the body then yields first. An error means that there is none:
// the server has ended before.
func Begin(res *http.Response) error {
	if res.StatusCode < http.StatusOK || res.ContentLength == 0 || res.Body == http.NoBody {
		return nil
	}
	buf := beginnings.Get().(*[512]byte)
	n, err := res.Body.Read(buf[:])
	for n == 0 && err == nil {
		n, err = res.Body.Read(buf[:])
	}
	if n == 0 && !errors.Is(err, io.EOF) {
		beginnings.Put(buf)
		return err
	}
	res.Body = &begun{ReadCloser: res.Body, buf: buf, head: buf[:n], err: err}
	return nil
}

// begun is the body of a response whose beginning was read.
type begun struct {
	io.ReadCloser
	buf  *[512]byte // of head; nil: it was read
	head []byte
	err  error // after head
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.head) > 0 {
		n := copy(p, b.head)
		b.head = b.head[n:]
		return n, nil
	}
	if b.buf != nil {
		beginnings.Put(b.buf)
		b.buf, b.head = nil, nil
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.ReadCloser.Read(p)
}
