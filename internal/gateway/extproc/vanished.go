package extproc

import (
	"context"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// unacknowledgedTime is how long a connection to a picker stays after its peer has acknowledged nothing of what was
// sent, nor taken any of it. The node of a picker may vanish without a reset: TCP would send again for a quarter of an
// hour, and gRPC would pass each new request to that connection.
const unacknowledgedTime = 5 * time.Second

// ending makes a dialer whose connections end when nothing is acknowledged for a time (TCP_USER_TIMEOUT of tcp(7)).
// gRPC's keepalive would set the same option, but its pings are refused by servers that get them too often.
func ending(after time.Duration, dial func(context.Context) (net.Conn, error)) func(context.Context, string) (net.Conn,
	error) {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		c, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			if raw, err := tcp.SyscallConn(); err == nil {
				_ = raw.Control(func(fd uintptr) { // without it, the connection ends later
					_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after.Milliseconds()))
				})
			}
		}
		return c, nil
	}
}
