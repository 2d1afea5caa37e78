package proxy

import (
	"io"
	"net"
	"sync/atomic"
	"time"
)

// Response is the body of a response. Its end is the end of the request.
type Response struct {
	io.ReadCloser
	End       func()
	AfterRead func() // may be nil
}

// Read implements io.Reader.
func (r *Response) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if r.AfterRead != nil {
		r.AfterRead()
	}
	return n, err
}

// Close implements io.Closer.
func (r *Response) Close() error {
	err := r.ReadCloser.Close()
	r.End()
	return err
}

// Upgraded is a connection to a backend that was upgraded from HTTP.
type Upgraded struct {
	*Response
	io.Writer
}

// CloseWrite ends one direction: after it, the rest of the other side's data is still received.
func (u *Upgraded) CloseWrite() error {
	if w, ok := u.Writer.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return u.Close()
}

// UpgradedClient is the client's side of such a connection.
type UpgradedClient struct {
	net.Conn
	Patience time.Duration // how long the client may be silent after the end of the server's data
	endSent  atomic.Bool   // the client was sent that end
}

// CloseWrite ends one direction. The client may still send, but must not stay idle: many servers have closed the
// connection, and the request counts until the client closes it, too.
func (u *UpgradedClient) CloseWrite() error {
	u.endSent.Store(true)
	_ = u.SetReadDeadline(time.Now().Add(u.Patience))
	if w, ok := u.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return u.Close()
}

// Read implements net.Conn.
func (u *UpgradedClient) Read(p []byte) (int, error) {
	n, err := u.Conn.Read(p)
	if n > 0 && u.endSent.Load() {
		_ = u.SetReadDeadline(time.Now().Add(u.Patience))
	}
	return n, err
}
