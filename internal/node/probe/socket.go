package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// socket is the connection of one probe. Its memory is used again.
type socket struct {
	fd      int
	peer    netip.AddrPort
	watched bool          // by the poller
	woken   chan struct{} // with room for one, by the poller
	timer   *time.Timer   // rings at the end of the probe's time
	end     time.Time     // when that is
	answer  [4 << 10]byte // the beginning of what the server sends
}

var freeSockets = sync.Pool{New: func() any {
	s := &socket{woken: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	s.timer.Stop()
	return s
}}

// open begins a connection; it may not be established yet.
func open(peer netip.AddrPort, timeout time.Duration) (*socket, error) {
	s := freeSockets.Get().(*socket)
	s.peer, s.watched = peer, false
	port := int(peer.Port())
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: peer.Addr().As16(), Port: port})
	if peer.Addr().Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Addr: peer.Addr().As4(), Port: port}
	}
	var err error
	if s.fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		err = s.failed("dial", "socket", err)
		freeSockets.Put(s)
		return nil, err
	}
	s.end = time.Now().Add(timeout)
	s.timer.Reset(timeout)
	// L5.26
	err = unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
	if err != nil {
		err = s.failed("dial", "setsockopt", err)
	} else if err = s.connect(address); errors.Is(err, unix.EINPROGRESS) {
		err = nil
	} else if err != nil {
		err = s.failed("dial", "connect", err)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *socket) connect(address unix.Sockaddr) error {
	for {
		if err := unix.Connect(s.fd, address); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// close closes the connection, for which it takes a second at most (SO_LINGER).
func (s *socket) close() {
	s.timer.Stop()
	_ = unix.Close(s.fd)
	freeSockets.Put(s)
}

// failed is an error as the net package returns it.
func (s *socket) failed(op, call string, err error) error {
	e := &net.OpError{Op: op, Net: "tcp", Addr: net.TCPAddrFromAddrPort(s.peer), Err: err}
	if call != "" {
		e.Err = os.NewSyscallError(call, err)
	}
	if op != "dial" {
		switch own, _ := unix.Getsockname(s.fd); a := own.(type) {
		case *unix.SockaddrInet4:
			e.Source = &net.TCPAddr{IP: a.Addr[:], Port: a.Port}
		case *unix.SockaddrInet6:
			e.Source = &net.TCPAddr{IP: a.Addr[:], Port: a.Port}
		}
	}
	return e
}

// established waits until the server has accepted the connection.
func (s *socket) established(ctx context.Context, p *poller) error {
	for {
		code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return s.failed("dial", "getsockopt", err)
		}
		if code != 0 {
			return s.failed("dial", "connect", unix.Errno(code))
		}
		if _, err := unix.Getpeername(s.fd); err == nil {
			return nil
		}
		if err := p.wait(ctx, s, unix.EPOLLOUT, s.timer.C); err != nil {
			return err
		}
	}
}

// send sends all of the text, and waits for the connection when it has to.
func (s *socket) send(ctx context.Context, p *poller, text []byte) error {
	connected := false
	for {
		n, err := unix.SendmsgN(s.fd, text, nil, nil, unix.MSG_NOSIGNAL)
		switch {
		case err == nil && n == len(text):
			return nil
		case err == nil:
			text, connected = text[n:], true
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN) && !connected:
			if err := s.established(ctx, p); err != nil {
				return err
			}
			connected = true
		case errors.Is(err, unix.EAGAIN):
			if err := p.wait(ctx, s, unix.EPOLLOUT, s.timer.C); err != nil {
				return err
			}
		case !connected:
			return s.failed("dial", "connect", err)
		default:
			return s.failed("write", "write", err)
		}
	}
}

// receive waits for what the server sends, and reads it into buf; 0 is the end.
func (s *socket) receive(ctx context.Context, p *poller, buf []byte) (int, error) {
	for {
		if err := p.wait(ctx, s, unix.EPOLLIN, s.timer.C); err != nil {
			return 0, err
		}
		n, err := unix.Read(s.fd, buf)
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		default:
			return 0, s.failed("read", "read", err)
		}
	}
}

// conn is the connection as one of the net package, which has to be closed, too.
func (s *socket) conn() (net.Conn, error) {
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, s.failed("dial", "fcntl", err)
	}
	f := os.NewFile(uintptr(fd), "probe")
	defer f.Close()
	return net.FileConn(f)
}
