package bridge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// portWatch reports when bridge ports begin to forward, and devices that are deleted or stopped, from the kernel's
// notifications. One goroutine reads them until close.
type portWatch struct {
	lost   func(index int) // a device was deleted or stopped; 0: some may have been
	socket *os.File        // uses the runtime's poller: no thread blocks in it
	done   chan struct{}

	mu      sync.Mutex
	waiting map[int]chan struct{} // port → closed when it forwards
}

// stateForwarding is BR_STATE_FORWARDING of linux/if_bridge.h.
const stateForwarding = 3

func watchPorts(lost func(index int)) (*portWatch, error) {
	socket, err := subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("watch network devices: %w", err)
	}
	w := &portWatch{lost: lost, socket: socket, waiting: map[int]chan struct{}{}, done: make(chan struct{})}
	go w.run()
	return w, nil
}

// subscribe opens a netlink socket for notifications in the calling thread's network namespace.
func subscribe(protocol, group int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (group - 1)}); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// expect returns a channel that is closed when the port forwards. It must be called before the port
// can forward; forget ends it.
func (w *portWatch) expect(port int) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan struct{})
	w.waiting[port] = c
	return c
}

func (w *portWatch) forget(port int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, port)
}

func (w *portWatch) close() {
	_ = w.socket.Close()
	<-w.done
}

func (w *portWatch) run() {
	defer close(w.done)
	buf := make([]byte, 64<<10)
	for {
		n, err := w.socket.Read(buf)
		switch {
		case err == nil:
			w.read(buf[:n])
		case errors.Is(err, unix.ENOBUFS):
			// Some notifications were lost; their waiters continue after the timeout.
			w.lost(0)
		default:
			return
		}
	}
}

// read parses one datagram of messages.
func (w *portWatch) read(b []byte) {
	msgs, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return
	}
	for _, m := range msgs {
		if index, ok := lostDevice(m); ok {
			w.lost(index)
		}
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_BRIDGE {
			continue
		}
		port := int(int32(binary.NativeEndian.Uint32(m.Data[4:8])))
		attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
		if err != nil {
			continue
		}
		for _, a := range attrs {
			if a.Attr.Type&^unix.NLA_F_NESTED == unix.IFLA_PROTINFO && portState(a.Value) == stateForwarding {
				w.forwards(port)
			}
		}
	}
}

// lostDevice reports whether a message is about a device that was deleted, or is not up. A bridge's messages about its
// ports have another family.
func lostDevice(m syscall.NetlinkMessage) (index int, lost bool) {
	if len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC {
		return 0, false
	}
	flags := binary.NativeEndian.Uint32(m.Data[8:12])
	return int(int32(binary.NativeEndian.Uint32(m.Data[4:8]))), m.Header.Type == unix.RTM_DELLINK ||
		m.Header.Type == unix.RTM_NEWLINK && flags&unix.IFF_UP == 0
}

func portState(info []byte) int {
	attrs, err := nl.ParseRouteAttr(info)
	if err != nil {
		return -1
	}
	for _, a := range attrs {
		if a.Attr.Type == nl.IFLA_BRPORT_STATE && len(a.Value) > 0 {
			return int(a.Value[0])
		}
	}
	return -1
}

func (w *portWatch) forwards(port int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.waiting[port]; c != nil {
		close(c)
		delete(w.waiting, port)
	}
}
