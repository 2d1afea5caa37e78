package proxy

import (
	"errors"
	"io"
	"net/http"
)

// Begin reads the beginning of a response's body into head, which the body then yields first. An error means that there
// is none: the server has ended before.
func Begin(res *http.Response, head []byte) error {
	if res.StatusCode < http.StatusOK || res.ContentLength == 0 || res.Body == http.NoBody {
		return nil
	}
	n, err := res.Body.Read(head)
	for n == 0 && err == nil {
		n, err = res.Body.Read(head)
	}
	if n == 0 && !errors.Is(err, io.EOF) {
		return err
	}
	res.Body = &begun{ReadCloser: res.Body, head: head[:n], err: err}
	return nil
}

// begun is the body of a response whose beginning was read.
type begun struct {
	io.ReadCloser
	head []byte
	err  error // after head
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.head) > 0 {
		n := copy(p, b.head)
		b.head = b.head[n:]
		return n, nil
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.ReadCloser.Read(p)
}
