package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// dialogue is the talk with one helper: it sends reports, and files of the image
// that decide how its program goes on.
type dialogue struct {
	program   *program
	waiting   func() error          // called while the helper waits for its first answer; nil: nothing to do
	launching func(*identity) error // called with who it will be, before its last answer; nil: nothing to do
	listener  func(*os.File) error  // takes the listener of a seccomp filter and closes it

	id    *identity
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
			return used, d.program.failure(int(op), stage, errno, string(data))
		case reportProcess:
			if d.pid == 0 { // who comes later may be the container's
				d.pid = int(errno)
			}
		case reportReady:
			d.ready = true
		case reportFile:
			if d.program.then == nil || d.id != nil {
				return used, errors.New("the helper sent a file that nobody asked for")
			}
			if d.files = append(d.files, append([]byte{}, data...)); len(d.files) < d.program.questions() {
				continue
			}
			if waiting := d.waiting; waiting != nil {
				d.waiting = nil // it may ask again
				if err := waiting(); err != nil {
					return used, err
				}
			}
			answer, id, err := d.program.answer(d.files)
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

// failure words a failed operation as users of runc know it.
func (p *program) failure(index int, stage uint32, errno unix.Errno, detail string) error {
	if index >= len(p.ops) {
		return fmt.Errorf("container program ended without an exec")
	}
	o := &p.ops[index]
	switch o.code {
	case opLookup, opExec:
		switch {
		case stage == 1:
			return &execError{fmt.Sprintf("exec: %q: executable file not found in $PATH", detail), errno}
		case stage == 2 && errno == unix.ENOENT:
			return &execError{fmt.Sprintf("exec: %q: stat %s: %v", detail, detail, errno), errno}
		case stage == 2:
			return &execError{fmt.Sprintf("exec: %q: %v", detail, errno), errno}
		default:
			return &execError{fmt.Sprintf("exec %s: %v", detail, errno), errno}
		}
	case opAsk:
		return fmt.Errorf("reading users and groups of the image: %w", errno)
	case opTree, opTreeIn:
		return fmt.Errorf("opening mount source %q: %w", strings.TrimSuffix(o.s[0]+"/"+o.s[1], "/"), errno)
	case opAttach:
		if errno == unix.EPERM && o.n[2] != procFree {
			return fmt.Errorf("error mounting to rootfs at %q: it is inside /proc, or would replace it by something else", o.s[0])
		}
		return fmt.Errorf("error mounting to rootfs at %q: %w", o.s[0], errno)
	case opMount:
		if errno == unix.ELOOP {
			return fmt.Errorf("error mounting %q to rootfs at %q: the image has a symbolic link there, which must be a directory", o.s[0], o.s[2])
		}
		return fmt.Errorf("error mounting %q to rootfs at %q: %w", o.s[0], o.s[2], errno)
	case opMountHost:
		return fmt.Errorf("error mounting %q at %q: %w", o.s[0], o.s[2], errno)
	case opAttr:
		if o.n[2] >= 0 && errno == unix.EINVAL {
			return fmt.Errorf("showing mount %d with the ids of the pod's user namespace: its file system can't do that: %w", o.n[0], errno)
		}
		return fmt.Errorf("setting attributes of mount %d (set %#x, propagation %#x): %w", o.n[0], o.n[1], o.n[3], errno)
	case opCwd:
		if errno == unix.EXDEV {
			return fmt.Errorf("working directory %q is outside of the container", o.s[0])
		}
		return fmt.Errorf("chdir to cwd (%q) set in config.json failed: %w", o.s[0], errno)
	case opWrite:
		return fmt.Errorf("write %q to %q: %w", o.s[1], o.s[0], errno)
	case opStdio:
		return fmt.Errorf("giving the process its standard streams (/dev/null of the container): %w", errno)
	case opSeccomp:
		return fmt.Errorf("error loading seccomp filter into kernel: %w", errno)
	case opFork, opEnter:
		return fmt.Errorf("making a process in the container's process namespace: %w", errno)
	case opProc:
		return fmt.Errorf("error mounting \"proc\" to rootfs at %q: %w", o.s[0], errno)
	case opCreds:
		return fmt.Errorf("setting user and capabilities: %w", errno)
	}
	return fmt.Errorf("container setup, operation %d (%s): %w", o.code, strings.Trim(o.s[0]+" "+o.s[1], " \x00"), errno)
}

// execError says that the user's program could not be executed.
type execError struct {
	text  string
	errno unix.Errno
}

func (e *execError) Error() string { return e.text }

// exitCode is what a shell would answer: 127 not found, 126 not executable.
func (e *execError) exitCode() int32 {
	if e.errno == unix.ENOENT {
		return 127
	}
	return 126
}
