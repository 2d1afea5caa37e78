package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"time"
)

// HelloTime is how long a client may take for the first message of TLS.
const HelloTime = 10 * time.Second

var errSeen = errors.New("the name was seen")

// Peek reads the requested server name of a connection, and returns one from which nothing has been read.
func Peek(c net.Conn) (string, net.Conn, error) {
	_ = c.SetReadDeadline(time.Now().Add(HelloTime))
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	var seen bytes.Buffer
	name := ""
	err := tls.Server(readOnly{io.TeeReader(c, &seen), c}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name = h.ServerName
			return nil, errSeen
		}}).HandshakeContext(context.Background())
	if !errors.Is(err, errSeen) {
		return "", nil, err
	}
	return strings.ToLower(name), &replayed{Conn: c, seen: &seen}, nil
}

// readOnly is a connection to which nothing is written.
type readOnly struct {
	io.Reader
	net.Conn
}

func (r readOnly) Read(p []byte) (int, error)       { return r.Reader.Read(p) }
func (r readOnly) Write([]byte) (int, error)        { return 0, io.ErrClosedPipe }
func (r readOnly) Close() error                     { return nil }
func (r readOnly) SetDeadline(time.Time) error      { return nil }
func (r readOnly) SetReadDeadline(time.Time) error  { return nil }
func (r readOnly) SetWriteDeadline(time.Time) error { return nil }

// replayed is a connection whose first bytes are read again.
type replayed struct {
	net.Conn
	seen *bytes.Buffer
}

func (r *replayed) Read(p []byte) (int, error) {
	if r.seen.Len() > 0 {
		return r.seen.Read(p)
	}
	return r.Conn.Read(p)
}

// WriteRead implements Wrapped.
func (r *replayed) WriteRead(to io.Writer) (int64, error) { return r.seen.WriteTo(to) }

// Unwrap implements Wrapped.
func (r *replayed) Unwrap() net.Conn { return r.Conn }
