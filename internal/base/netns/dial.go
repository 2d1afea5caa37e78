package netns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// DialTCP connects to an address of the namespace at path; of the thread's own, if path is empty. Only the socket is
// made on a thread of the namespace, the connection is awaited without one: a server that accepts no connections makes
// each wait for minutes, and a process with 10,000 threads ends.
func DialTCP(ctx context.Context, path string, to netip.AddrPort) (net.Conn, error) {
	var f *os.File
	begin := func() (err error) {
		f, err = beginConnect(to)
		return err
	}
	var err error
	if path == "" {
		err = begin()
	} else {
		err = Do(path, begin)
	}
	if err == nil {
		defer func() { _ = f.Close() }() // FileConn has a descriptor of its own
		err = connected(ctx, f)
	}
	if err == nil {
		var c net.Conn
		if c, err = net.FileConn(f); err == nil {
			return c, nil
		}
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
}

// beginConnect makes a socket in the namespace of the thread, and begins to connect it.
func beginConnect(to netip.AddrPort) (*os.File, error) {
	var family int
	var at unix.Sockaddr
	if to.Addr().Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	} else {
		family, at = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Connect(fd, at); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, errors.Join(os.NewSyscallError("connect", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "connection"), nil
}

// connected waits until a connection is complete or refused, or ctx ends.
func connected(ctx context.Context, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		var code int
		code, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if failed == nil && code != 0 {
			failed = unix.Errno(code)
		}
		if failed != nil {
			failed = os.NewSyscallError("connect", failed)
			return true
		}
		_, err := unix.Getpeername(int(fd))
		return err == nil // it fails until then
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, failed)
}
