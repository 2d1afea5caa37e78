package monitor

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"carob/internal/base/openfile"
	"carob/internal/runtime/native/wire"
)

// Joined are the namespaces that a waiting helper must join first (CLONE_NEW*): when it was started,
// the monitor was in those of the host.
const Joined = unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// programTimeout limits how long a helper takes to read its program, which it waits for.
const programTimeout = 5 * time.Second

// Waiting is a helper that was started ahead and waits for its program. It is for one container
// with a PID namespace of its own, without input and terminal. It ends when its line is closed, so
// with this process.
type Waiting struct {
	Line   *net.UnixConn
	Helper *os.File // what it executes
}

// Prepare starts a helper that waits for its program, for the first container of the pod that this
// monitor, which has none yet, will belong to. A monitor of an earlier release does not support this request.
func (m *Monitor) Prepare(helper *os.File) error {
	ours, theirs, err := HelperLine()
	if err != nil {
		return err
	}
	defer theirs.Close()
	if _, err := m.call(wire.Message{Code: msgPrepare}, helper, theirs); err != nil {
		ours.Close()
		return fmt.Errorf("starting a helper ahead: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waits = &Waiting{Line: ours, Helper: helper}
	return nil
}

// Take returns the waiting helper, which is the caller's from now on; nil if there is none (any
// more). Each helper is used once.
func (m *Monitor) Take() *Waiting {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.waits
	m.waits = nil
	return w
}

// Drop ends the waiting helper, if there is one.
func (m *Monitor) Drop() {
	if w := m.Take(); w != nil {
		w.Line.Close()
	}
}

// Send gives the helper its program, and the mount that the program takes (nil for none). One that
// has ended, or does not read, is an error; the helper has done nothing then that outlives it.
func (w *Waiting) Send(program []byte, root *os.File) error {
	b := append(binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(program)), uint32(len(program))), program...)
	if err := w.Line.SetWriteDeadline(time.Now().Add(programTimeout)); err != nil {
		return fmt.Errorf("sending a program to a waiting helper: %w", err)
	}
	if _, err := w.Line.Write(b); err != nil {
		return fmt.Errorf("sending a program to a waiting helper: %w", err)
	}
	if err := SendFile(w.Line, root); err != nil {
		return err
	}
	return w.Line.SetWriteDeadline(time.Time{})
}

// SendFile sends a helper the file that its program takes; nil is none. The helper reads it when its
// program gets there; one byte always finds room in an empty line.
func SendFile(line *net.UnixConn, f *os.File) error {
	if f == nil {
		return nil
	}
	if _, _, err := line.WriteMsgUnix([]byte{0}, unix.UnixRights(openfile.FD(f)), nil); err != nil {
		return fmt.Errorf("sending a file to a helper: %w", err)
	}
	return nil
}
