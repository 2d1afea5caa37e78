package monitor

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"carob/internal/runtime/native/wire"
)

// ErrSlow is the error of an attach whose client held back the container's output for too long (csrc/README.md).
var ErrSlow = errors.New("the client has read nothing for ten seconds: the rest of the output is only in the log")

// Attach connects streams (nil for none) to a container, over a connection of its own, until the
// container has exited, the client disconnects, or ctx ends. The error unix.ESRCH means that the
// monitor holds nothing of the container, ErrSlow that the client did not get all output.
func Attach(ctx context.Context, conn *net.UnixConn, id string, in io.Reader, out, errw io.Writer,
	resize <-chan remotecommand.TerminalSize) error {
	req := wire.Message{Code: msgAttach, S: [4]string{id}}
	if in == nil {
		req.N[0] = 1 // the end of this client is not the end of the container's input
	}
	if _, err := conn.Write(req.Append(nil)); err != nil {
		return err
	}
	b := make([]byte, 64<<10)
	var a wire.Message
	for a.Code != replyDone { // the monitor sends events of all containers to every connection, also before the answer
		n, err := readFrame(conn, b)
		if err != nil {
			return err
		}
		if a, err = wire.Parse(b[:n]); err != nil {
			return err
		}
	}
	if a.N[0] != 0 {
		return unix.Errno(a.N[0])
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if in != nil {
		go feed(conn, in)
	}
	if resize != nil {
		go func() {
			for {
				select {
				case z, ok := <-resize:
					if !ok {
						return
					}
					f := binary.LittleEndian.AppendUint32([]byte{frameResize}, uint32(z.Height))
					// a closed connection ends the reader below
					_, _ = conn.Write(binary.LittleEndian.AppendUint32(f, uint32(z.Width)))
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	for {
		n, err := readFrame(conn, b)
		if err != nil || n == 0 {
			return ctx.Err() // the container has exited, or the caller has gone
		}
		var w io.Writer
		switch {
		case b[0] == frameDropped:
			return ErrSlow
		case b[0] == frameStdout && out != nil:
			w = out
		case b[0] == frameStderr && errw != nil:
			w = errw
		}
		if w != nil {
			if _, err := w.Write(b[1:n]); err != nil {
				return nil // the client has disconnected
			}
		}
	}
}

// readFrame reads the next packet. When the monitor closes a connection on which it left input
// unread, Linux reports ECONNRESET once, ahead of the packets that the monitor sent before: these
// follow, and then the end.
func readFrame(conn *net.UnixConn, b []byte) (int, error) {
	n, err := conn.Read(b)
	if errors.Is(err, unix.ECONNRESET) {
		n, err = conn.Read(b)
	}
	return n, err
}

// feed sends a client's input to the monitor, and then the end of the input.
func feed(conn net.Conn, in io.Reader) {
	b := make([]byte, 16<<10)
	for {
		n, err := in.Read(b[1:])
		if n > 0 {
			b[0] = frameStdin
			if _, werr := conn.Write(b[:n+1]); werr != nil {
				return
			}
		}
		if err != nil {
			_, _ = conn.Write([]byte{frameClose}) // the container may exit first
			return
		}
	}
}
