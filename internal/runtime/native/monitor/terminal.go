package monitor

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"carob/internal/base/openfile"
)

// ReceiveTerminal receives a terminal's master side from the helper's socket.
func ReceiveTerminal(sock *os.File) (*os.File, error) {
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(openfile.FD(sock), b[:], oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("receiving the terminal: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return nil, errors.New("the helper sent no terminal")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.New("the helper sent no terminal")
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return nil, fmt.Errorf("receiving the terminal: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}

// ResizeTerminal sets the size of a terminal.
func ResizeTerminal(f *os.File, rows, cols uint16) {
	// its process may have ended
	_ = unix.IoctlSetWinsize(openfile.FD(f), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
}
