package probe

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// poller notifies waiting probes that their sockets are ready. A socket of the net package is watched for everything,
// so that Go's scheduler wakes a thread when it can be written, when a response arrives, and when the server closes it.
// A probe waits for one of these events, once.
//
// It is created for the first probe and stays: its goroutine sleeps in Go's own poller while nothing waits.
type poller struct {
	fd    int
	epoll *os.File // the same

	mu    sync.Mutex
	last  uint64                   // id
	waits map[uint64]chan struct{} // by id; a socket's number may be that of another one already
}

// sockets is the poller of the process. Without one (the process had too many files open), probes do with the sockets
// of the net package.
var sockets = sync.OnceValues(newPoller)

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // for os.NewFile, which then has Go's poller watch it
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{fd: fd, epoll: os.NewFile(uintptr(fd), "epoll"), waits: map[uint64]chan struct{}{}}
	raw, err := p.epoll.SyscallConn()
	if err != nil {
		_ = p.epoll.Close()
		return nil, err
	}
	go p.run(raw)
	return p, nil
}

// run wakes probes until the process ends.
func (p *poller) run(raw syscall.RawConn) {
	var events [64]unix.EpollEvent
	for {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			var err error
			n, err = unix.EpollWait(int(fd), events[:], 0)
			return err == nil && n > 0
		})
		if err != nil {
			return // closed: only tests do
		}
		p.mu.Lock()
		for _, e := range events[:n] {
			if w := p.waits[eventID(&e)]; w != nil {
				w <- struct{}{} // it has room for one, and is removed before it gets another
				delete(p.waits, eventID(&e))
			}
		}
		p.mu.Unlock()
	}
}

// eventID is the number that wait gave to the event.
func eventID(e *unix.EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// wait returns when one of the events happens to the socket, or with an error when ctx ends or the time is up. woken
// has room for one, and is empty, before and after.
func (p *poller) wait(ctx context.Context, s *socket, events uint32, timeout <-chan time.Time) error {
	p.mu.Lock()
	p.last++
	id := p.last
	p.waits[id] = s.woken
	p.mu.Unlock()
	op := unix.EPOLL_CTL_ADD
	if s.watched {
		op = unix.EPOLL_CTL_MOD
	}
	err := unix.EpollCtl(p.fd, op, s.fd,
		&unix.EpollEvent{Events: events | unix.EPOLLONESHOT, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))})
	if err == nil {
		s.watched = true
		select {
		case <-s.woken:
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-timeout:
			err = context.DeadlineExceeded
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, waits := p.waits[id]; !waits {
		<-s.woken // it was sent with the lock held
	}
	delete(p.waits, id)
	return err
}
