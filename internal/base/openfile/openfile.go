// Package openfile works with what is behind an os.File: its descriptor, a socket, or an unnamed
// file in memory. The native runtime passes such files to its C programs.
package openfile

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// FD returns the descriptor of f, without making it blocking as File.Fd does. It is -1 for a
// closed file.
func FD(f *os.File) int {
	n := -1
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(p uintptr) { n = int(p) }) // fails for a closed file
	}
	return n
}

// UnixConn returns the connection of a unix socket. It uses a duplicate of the descriptor: the
// caller still closes f.
func UnixConn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("using %s as a socket: %w", f.Name(), err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("using %s as a unix socket: it is of network %s", f.Name(), c.LocalAddr().Network())
	}
	return u, nil
}

const memfdNoExec = 0x8 // MFD_NOEXEC_SEAL, Linux 6.3

// Memory creates an unnamed file in memory with close-on-exec. flag is omitted on kernels that do not support it:
// MFD_NOEXEC_SEAL and MFD_EXEC need 6.3.
func Memory(name string, flags, flag int) (int, error) {
	n, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|flags|flag)
	if errors.Is(err, unix.EINVAL) {
		n, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|flags)
	}
	if err != nil {
		return -1, fmt.Errorf("creating %s in memory: %w", name, err)
	}
	return n, nil
}

// MemoryFile creates an unnamed file in memory with the given content. A process that inherits
// it reads it at an offset or seeks first: the file's own offset is at its end.
func MemoryFile(name string, content []byte) (*os.File, error) {
	n, err := Memory(name, 0, memfdNoExec)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(n), name)
	if _, err := f.Write(content); err != nil {
		f.Close()
		return nil, fmt.Errorf("writing %s to memory: %w", name, err)
	}
	return f, nil
}
