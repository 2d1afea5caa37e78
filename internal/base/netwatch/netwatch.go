// Package netwatch reports when the addresses or routes of this host may have changed. It must
// never read an address itself.
package netwatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// settle is the time without notifications before look is called: a network comes up in many steps.
const settle = 300 * time.Millisecond

// groups are the multicast groups of rtnetlink for addresses and routes. Devices are not included,
// because they change with each pod.
var groups = []uint{unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
	unix.RTNLGRP_IPV6_ROUTE}

// Watch is a subscription of one network namespace.
type Watch struct {
	socket *os.File // uses the runtime's poller: no thread blocks in it
}

// Open subscribes in the network namespace of the calling thread.
func Open() (*Watch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch addresses of the host: %w", err)
	}
	var mask uint32
	for _, g := range groups {
		mask |= 1 << (g - 1)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: mask}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("watch addresses of the host: %w", err)
	}
	return &Watch{os.NewFile(uintptr(fd), "netlink")}, nil
}

// Run calls look at once and after changes, until ctx is done. Calls never overlap. It closes the
// subscription.
func (w *Watch) Run(ctx context.Context, look func()) error {
	stop := context.AfterFunc(ctx, func() { _ = w.socket.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		_ = w.socket.Close()
	}()
	look()
	buf := make([]byte, 64<<10)
	for ctx.Err() == nil {
		_, err := w.socket.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = w.socket.SetReadDeadline(time.Time{})
			if ctx.Err() == nil {
				look()
			}
			continue
		case err != nil && !errors.Is(err, unix.ENOBUFS): // some were lost: look anyway
			return fmt.Errorf("watch addresses of the host: %w", err)
		}
		_ = w.socket.SetReadDeadline(time.Now().Add(settle))
	}
	return nil
}
