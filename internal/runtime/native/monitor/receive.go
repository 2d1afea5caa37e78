package monitor

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"carob/internal/runtime/native/wire"
)

// maxMessage is the longest message of a monitor (csrc/monitor.c), in bytes.
const maxMessage = 16 << 10

// buffers are for messages while they are read: a connection that is silent, as most are, has none.
var buffers = sync.Pool{New: func() any { return new([maxMessage]byte) }}

// receiveMessage waits for the next message of a monitor. It fails at the end of the connection, and for what is no
// message.
func receiveMessage(in syscall.RawConn) (r wire.Message, err error) {
	wait := in.Read(func(fd uintptr) bool {
		b, _ := buffers.Get().(*[maxMessage]byte)
		defer buffers.Put(b)
		var n int
		n, err = recv(int(fd), b[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case err == nil && n == 0:
			err = io.EOF
		case err == nil:
			r, err = wire.Parse(b[:n]) // copies
		}
		return true
	})
	if wait != nil {
		return r, wait
	}
	return r, err
}

func recv(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// reap waits until a process that this one started has ended, and ends its zombie. The connection of a monitor may end
// before the monitor does, or without it: the wait takes no thread, unlike that of exec.Cmd.
func reap(cmd *exec.Cmd) {
	// The ID is that of the process until it is reaped.
	fd, err := unix.PidfdOpen(cmd.Process.Pid, unix.PIDFD_NONBLOCK)
	if err == nil {
		f := os.NewFile(uintptr(fd), "process")
		defer f.Close()
		awaitEnd(f)
	}
	_ = cmd.Wait() // at once; its connection has reported how it ended
}

// awaitEnd waits until the process of a pidfd has ended. It returns early where that cannot be waited for.
func awaitEnd(process *os.File) {
	c, err := process.SyscallConn()
	if err != nil {
		return
	}
	_ = c.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}
