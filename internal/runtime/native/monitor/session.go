package monitor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"carob/internal/base/openfile"
	"carob/internal/runtime/native/plan"
)

// Session is the conversation with one helper. The helper sends reports, and files of the image
// that decide how its program continues.
type Session struct {
	Program   *plan.Program
	Waiting   func() error               // called while the helper waits for its first answer; nil for nothing to do
	Launching func(*plan.Identity) error // called with the process ID before the last answer; nil for nothing to do
	Listener  func(*os.File) error       // takes the listener of a seccomp filter and closes it

	User  *plan.Identity // known with the last answer
	Files [][]byte       // for which the last answer was planned
	PID   int            // the process that the helper continues as; 0 if it is the same one
	ready bool           // everything is done except the exec
	files [][]byte
	fds   []int
	begun []byte // a report of which Answer has read the beginning
}

// What the helper reports (struct report of helper.c).
const (
	reportHeader   = 20
	reportFailure  = 'E'
	reportFile     = 'F'
	reportListener = 'L'
	reportProcess  = 'P'
	reportReady    = 'X'
)

// ErrKilledEarly means that the helper ended without a report.
var ErrKilledEarly = errors.New("killed before the container's command was started")

// ErrChanged means that a file is not the one that the program was planned for: nothing was done.
var ErrChanged = errors.New("a file of the image has changed")

// Serve serves the helper until it has become the user's process (nil) or failed.
func (d *Session) Serve(c *net.UnixConn) error {
	defer func() {
		for _, fd := range d.fds {
			unix.Close(fd)
		}
	}()
	b, oob := make([]byte, 0, 16<<10), make([]byte, unix.CmsgSpace(4))
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, on, _, _, err := c.ReadMsgUnix(b[len(b):cap(b)], oob)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			if !d.ready {
				return ErrKilledEarly
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the helper's report: %w", err)
		}
		if msgs, err := unix.ParseSocketControlMessage(oob[:on]); err == nil {
			for i := range msgs {
				fds, _ := unix.ParseUnixRights(&msgs[i]) // other kinds carry no files
				d.fds = append(d.fds, fds...)
			}
		}
		b = b[:len(b)+n]
		used, err := d.take(b, c)
		if err != nil {
			return err
		}
		b = b[:copy(b, b[used:])]
	}
}

// Answer serves the helper until it has its last answer; Outcome reads what it reports from then on.
func (d *Session) Answer(line io.ReadWriter) error {
	b := make([]byte, 0, 4<<10)
	for d.User == nil {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := line.Read(b[len(b):cap(b)])
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return ErrKilledEarly
		}
		if err != nil {
			return fmt.Errorf("reading the helper's report: %w", err)
		}
		b = b[:len(b)+n]
		used, err := d.take(b, line)
		if err != nil {
			return err
		}
		b = b[:copy(b, b[used:])]
	}
	d.begun = b
	return nil
}

// Outcome reads from a socket what the helper has reported since its last answer, when the process that it became has
// ended: nil if that was the user's.
func (d *Session) Outcome(socket int) error {
	b := append(d.begun, make([]byte, 512)...)[:len(d.begun)]
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, _, err := unix.Recvfrom(socket, b[len(b):cap(b)], unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 { // its end, or all that has been reported; a helper that forked may end a little later
			break
		}
		b = b[:len(b)+n]
		used, err := d.take(b, io.Discard)
		if err != nil {
			return err
		}
		b = b[:copy(b, b[used:])]
	}
	if !d.ready {
		return ErrKilledEarly
	}
	return nil
}

// take handles the complete reports at the beginning of b.
func (d *Session) take(b []byte, c io.Writer) (used int, err error) {
	le := binary.LittleEndian
	for len(b)-used >= reportHeader {
		r := b[used:]
		kind, op, errno, stage, n := le.Uint32(r), le.Uint32(r[4:]), unix.Errno(le.Uint32(r[8:])), le.Uint32(r[12:]),
			le.Uint32(r[16:])
		if n > plan.MaxFile {
			return used, fmt.Errorf("the helper reports %d bytes", n)
		}
		if len(r) < reportHeader+int(n) {
			break
		}
		data := r[reportHeader : reportHeader+int(n)]
		used += reportHeader + int(n)
		switch kind {
		case reportFailure:
			return used, d.Program.Failure(int(op), stage, errno, string(data))
		case reportProcess:
			if d.PID == 0 { // later processes may be the container's
				d.PID = int(errno)
			}
		case reportReady:
			d.ready = true
		case reportFile:
			if d.Program.Planned() {
				return used, ErrChanged
			}
			if !d.Program.RequestsFiles() || d.User != nil {
				return used, errors.New("the helper sent a file that was not requested")
			}
			if d.files = append(d.files, append([]byte{}, data...)); len(d.files) < d.Program.Questions() {
				continue
			}
			if waiting := d.Waiting; waiting != nil {
				d.Waiting = nil // it may ask again
				if err := waiting(); err != nil {
					return used, err
				}
			}
			answer, id, err := d.Program.Answer(d.files)
			if err != nil {
				return used, err
			}
			d.User, d.Files, d.files = id, d.files, nil
			if d.Launching != nil && id != nil {
				if err := d.Launching(id); err != nil {
					return used, err
				}
			}
			if _, err := c.Write(answer); err != nil && !errors.Is(err, unix.EPIPE) &&
				!errors.Is(err, unix.ECONNRESET) {
				return used, fmt.Errorf("answering the helper: %w", err)
			}
		case reportListener:
			if len(d.fds) == 0 || d.Listener == nil {
				return used, errors.New("the helper sent a seccomp listener that was not requested")
			}
			f := os.NewFile(uintptr(d.fds[0]), "seccomp listener")
			d.fds = d.fds[1:]
			if err := d.Listener(f); err != nil {
				return used, err
			}
		}
	}
	return used, nil
}

// LateLine is the connection to a helper whose reports, or the last ones, are read late: no thread wakes for them.
type LateLine struct {
	socket int
}

// NewLateLine makes the connection.
func NewLateLine() (l *LateLine, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making the line to the helper: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "helper")
	return &LateLine{fds[0]}, theirs, nil
}

// Answer serves the helper until it has its last answer.
func (l *LateLine) Answer(d *Session) error {
	err := unix.SetNonblock(l.socket, true)
	second := -1
	if err == nil {
		second, err = unix.FcntlInt(uintptr(l.socket), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return fmt.Errorf("waiting for the helper: %w", err)
	}
	f := os.NewFile(uintptr(second), "helper")
	defer f.Close() // the poller does not watch the socket any more
	return d.Answer(f)
}

// Outcome is what the helper reported, or what it reported since its last answer.
func (l *LateLine) Outcome(d *Session) error { return d.Outcome(l.socket) }

// Close ends a helper that waits.
func (l *LateLine) Close() {
	if l.socket >= 0 {
		unix.Close(l.socket) //nolint:errcheck,gosec // nothing was written
		l.socket = -1
	}
}

// HelperLine is the connection to a helper.
func HelperLine() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making the line to the helper: %w", err)
	}
	a, theirs := os.NewFile(uintptr(fds[0]), "helper"), os.NewFile(uintptr(fds[1]), "helper")
	defer a.Close()
	if ours, err = openfile.UnixConn(a); err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}
