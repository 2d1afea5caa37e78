package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
)

// portIDs are the netlink addresses of our own connections: notifications name who made a change.
type portIDs struct {
	mu   sync.Mutex
	list []uint32 // the newest last
}

// keptPorts is how many earlier connections are remembered: their notifications may still
// arrive.
const keptPorts = 4

func (p *portIDs) add(c *netlink.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var id uint32
	var failed error
	err = raw.Control(func(fd uintptr) {
		addr, err := unix.Getsockname(int(fd))
		if nl, ok := addr.(*unix.SockaddrNetlink); ok {
			id = nl.Pid
		}
		failed = err
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("read the address of a netlink socket: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, id)
	if len(p.list) > keptPorts {
		p.list = p.list[1:]
	}
	return nil
}

func (p *portIDs) has(id uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.list, id)
}

// Disturbed reports a change when the table has not changed for settle, at the latest after settleMax: a firewall is
// loaded in many steps.
const (
	settle    = 50 * time.Millisecond
	settleMax = time.Second
)

// Watch follows the kernel's notifications until ctx is done, and sleeps while there are none.
// It may run concurrently with all other methods except Close.
func (t *Table) Watch(ctx context.Context) error {
	var socket *os.File
	err := netns.Do(fmt.Sprintf("/proc/self/fd/%d", t.ns.Fd()), func() (err error) {
		socket, err = subscribe()
		return err
	})
	if err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	defer socket.Close()
	t.watch.Store(socket)
	defer t.watch.CompareAndSwap(socket, nil)
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	t.disturb() // changes before the subscription are unknown
	buf := make([]byte, 64<<10)
	var first time.Time // of the changes that were not reported yet
	for ctx.Err() == nil {
		n, err := socket.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			first = time.Time{}
			_ = socket.SetReadDeadline(time.Time{})
			if ctx.Err() == nil {
				t.disturb()
			}
			continue
		case err != nil && !errors.Is(err, unix.ENOBUFS): // some were lost: report a change anyway
			return fmt.Errorf("watch nftables: %w", err)
		case err == nil && !t.concerns(buf[:n]):
			continue
		}
		now := time.Now()
		if first.IsZero() {
			first = now
		}
		_ = socket.SetReadDeadline(earlier(now.Add(settle), first.Add(settleMax)))
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (t *Table) disturb() {
	select {
	case t.poke <- struct{}{}:
	default:
	}
}

// concerns reports whether a datagram has a change of this table that carob has not made.
func (t *Table) concerns(b []byte) bool {
	msgs, err := syscall.ParseNetlinkMessage(b)
	return err != nil || slices.ContainsFunc(msgs, func(m syscall.NetlinkMessage) bool {
		if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Header.Type&0xff == unix.NFT_MSG_NEWGEN ||
			t.ports.has(m.Header.Pid) || len(m.Data) < 4 || m.Data[0] != byte(t.cfg.Family) {
			return false
		}
		name, ok := tableOf(m.Data[4:])
		return !ok || name == t.cfg.Name
	})
}

// tableOf reads the table's name, which is attribute 1 of all messages of nftables but NEWGEN.
func tableOf(attrs []byte) (string, bool) {
	for len(attrs) >= 4 {
		n := int(binary.NativeEndian.Uint16(attrs))
		if n < 4 || n > len(attrs) {
			return "", false
		}
		if binary.NativeEndian.Uint16(attrs[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == 1 {
			return unix.ByteSliceToString(attrs[4:n]), true
		}
		attrs = attrs[min((n+3)&^3, len(attrs)):]
	}
	return "", false
}

// watchBuffer is the room for notifications of small transactions.
const watchBuffer = 1 << 20

// watchRoom makes room for this many bytes of notifications: our own transactions are reported, too, also what they
// remove. If some were lost, the table would be compared and written again, in another large transaction, without an
// end.
func (t *Table) watchRoom(size int) {
	socket := t.watch.Load()
	if socket == nil {
		return
	}
	raw, err := socket.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, watchBuffer+2*size)
		})
	}
}

// subscribe opens a socket for notifications in the calling thread's network namespace. It uses the
// runtime's poller: no thread blocks in it.
func subscribe() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, watchBuffer)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
		Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}
