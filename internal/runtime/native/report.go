package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"carob/internal/runtime/native/plan"
)

// dialogue is the talk with one helper: it sends reports, and files of the image
// that decide how its program goes on.
type dialogue struct {
	program   *plan.Program
	waiting   func() error               // called while the helper waits for its first answer; nil: nothing to do
	launching func(*plan.Identity) error // called with who it will be, before its last answer; nil: nothing to do
	listener  func(*os.File) error       // takes the listener of a seccomp filter and closes it

	id    *plan.Identity
	pid   int  // of the process that the helper went on as; 0: it is the one it was
	ready bool // all is done but the exec
	files [][]byte
	fds   []int
}

// What the helper reports (struct report of helper.c).
const (
	reportHeader   = 20
	reportFailure  = 'E'
	reportFile     = 'F'
	reportListener = 'L'
	reportProcess  = 'P'
	reportReady    = 'X'

	maxReport = 4 << 20 // bytes of one file
)

// errKilledEarly says that the helper ended without a word.
var errKilledEarly = errors.New("it was killed before it was the container's process")

// talk serves the helper until it became the user's process (nil) or failed.
func (d *dialogue) talk(c *net.UnixConn) error {
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
				return errKilledEarly
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the helper's report: %w", err)
		}
		if msgs, err := unix.ParseSocketControlMessage(oob[:on]); err == nil {
			for i := range msgs {
				fds, _ := unix.ParseUnixRights(&msgs[i]) // other kinds carry none
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

// take acts on the whole reports at the beginning of b.
func (d *dialogue) take(b []byte, c io.Writer) (used int, err error) {
	le := binary.LittleEndian
	for len(b)-used >= reportHeader {
		r := b[used:]
		kind, op, errno, stage, n := le.Uint32(r), le.Uint32(r[4:]), unix.Errno(le.Uint32(r[8:])), le.Uint32(r[12:]), le.Uint32(r[16:])
		if n > maxReport {
			return used, fmt.Errorf("the helper reports %d bytes", n)
		}
		if len(r) < reportHeader+int(n) {
			break
		}
		data := r[reportHeader : reportHeader+int(n)]
		used += reportHeader + int(n)
		switch kind {
		case reportFailure:
			return used, d.program.Failure(int(op), stage, errno, string(data))
		case reportProcess:
			if d.pid == 0 { // who comes later may be the container's
				d.pid = int(errno)
			}
		case reportReady:
			d.ready = true
		case reportFile:
			if !d.program.Asks() || d.id != nil {
				return used, errors.New("the helper sent a file that nobody asked for")
			}
			if d.files = append(d.files, append([]byte{}, data...)); len(d.files) < d.program.Questions() {
				continue
			}
			if waiting := d.waiting; waiting != nil {
				d.waiting = nil // it may ask again
				if err := waiting(); err != nil {
					return used, err
				}
			}
			answer, id, err := d.program.Answer(d.files)
			if err != nil {
				return used, err
			}
			d.id, d.files = id, nil
			if d.launching != nil && id != nil {
				if err := d.launching(id); err != nil {
					return used, err
				}
			}
			if _, err := c.Write(answer); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
				return used, fmt.Errorf("answering the helper: %w", err)
			}
		case reportListener:
			if len(d.fds) == 0 || d.listener == nil {
				return used, errors.New("the helper has a listener for seccomp that nobody asked for")
			}
			f := os.NewFile(uintptr(d.fds[0]), "seccomp listener")
			d.fds = d.fds[1:]
			if err := d.listener(f); err != nil {
				return used, err
			}
		}
	}
	return used, nil
}
