// Package socketstore keeps listening sockets open while the process is replaced: the service manager keeps them
// (sd_notify(3), FDSTORE=1) and passes them to the next process (sd_listen_fds(3)). Connections and datagrams that
// arrive in between wait in the socket's queue. Without a service manager that supports it, nothing is kept.
package socketstore

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// firstFD is the first descriptor that a service manager passes.
const firstFD = 3

// Store has the sockets of the previous process, and keeps those of this one.
type Store struct {
	manager string // path of the service manager's socket; empty: there is none

	mu    sync.Mutex
	given map[string]*os.File // not taken yet
}

// Open takes the sockets that the service manager has passed to this process. It ignores names
// without the prefix. It must be called once, early: it removes the environment variables, which
// are not meant for child processes.
func Open(prefix string) *Store {
	s := &Store{manager: os.Getenv("NOTIFY_SOCKET"), given: map[string]*os.File{}}
	pid, fds, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	for _, v := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(v)
	}
	n, err := strconv.Atoi(fds)
	if err != nil || n < 1 || n > 4096 || pid != strconv.Itoa(os.Getpid()) {
		return s
	}
	for i, name := range strings.Split(names, ":") {
		if i >= n {
			break
		}
		unix.CloseOnExec(firstFD + i)
		if strings.HasPrefix(name, prefix) && s.given[name] == nil {
			s.given[name] = os.NewFile(uintptr(firstFD+i), name)
		}
	}
	return s
}

// Give adds a socket as if the service manager had passed it.
func (s *Store) Give(name string, f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given[name] = f
}

// Has reports whether the previous process has left a socket with the name.
func (s *Store) Has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given[name] != nil
}

// take removes the socket with the name that the previous process has left; nil: there is none.
func (s *Store) take(name string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.given[name]
	delete(s.given, name)
	return f
}

// UDP returns the socket with the name that the previous process has left, if it is one of UDP with the address; else
// nil.
func (s *Store) UDP(name, addr string) *net.UDPConn {
	f := s.take(name)
	if f == nil {
		return nil
	}
	defer f.Close() // the connection has a copy
	pc, err := net.FilePacketConn(f)
	if err != nil {
		return nil
	}
	udp, ok := pc.(*net.UDPConn)
	if !ok || udp.LocalAddr().String() != addr {
		_ = pc.Close()
		return nil
	}
	return udp
}

// Listener returns the socket with the name that the previous process has left, if it listens on
// the address; else nil.
func (s *Store) Listener(name, addr string) net.Listener {
	f := s.take(name)
	if f == nil {
		return nil
	}
	defer f.Close() // the listener has a copy
	ln, err := net.FileListener(f)
	if err != nil {
		return nil
	}
	if ln.Addr().String() != addr {
		_ = ln.Close()
		return nil
	}
	return ln
}

// Rest closes the sockets that were not taken over.
func (s *Store) Rest() {
	s.mu.Lock()
	left := s.given
	s.given = map[string]*os.File{}
	s.mu.Unlock()
	for name, f := range left {
		_ = f.Close()
		_ = s.Forget(name)
	}
}

// Keep makes the service manager hold a socket of TCP or UDP until Forget.
func (s *Store) Keep(name string, socket any) error {
	of, ok := socket.(syscall.Conn)
	if s.manager == "" || !ok {
		return nil
	}
	raw, err := of.SyscallConn()
	if err != nil {
		return fmt.Errorf("keep socket %s: %w", name, err)
	}
	var sent error
	if err := raw.Control(func(fd uintptr) {
		sent = s.send("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, unix.UnixRights(int(fd)))
	}); err != nil {
		return fmt.Errorf("keep socket %s: %w", name, err)
	}
	return sent
}

// Forget makes the service manager close a socket.
func (s *Store) Forget(name string) error {
	if s.manager == "" {
		return nil
	}
	return s.send("FDSTOREREMOVE=1\nFDNAME="+name, nil)
}

func (s *Store) send(text string, rights []byte) error {
	if strings.Count(text, "\n") > 2 {
		return errors.New("a socket's name has a line break")
	}
	addr := &net.UnixAddr{Name: s.manager, Net: "unixgram"}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer c.Close()
	if _, _, err := c.WriteMsgUnix([]byte(text), rights, addr); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// Name makes the name of a socket from a prefix and its address: names have no colons.
func Name(prefix, addr string) string {
	return prefix + strings.NewReplacer(":", "_", "[", "", "]", "").Replace(addr)
}
