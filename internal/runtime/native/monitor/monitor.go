// Package monitor is the client of the native runtime's C programs (csrc): of the monitor of each
// pod, which starts, signals, and reaps its processes, and of the helper while it becomes a
// container's process.
//
// The native runtime drives it. It starts monitors in advance (Pool), starts and finds them
// (Programs, Dial), and serves one helper at a time (Session). It must never decide what a
// container gets, which package plan does, and never change a message of an earlier release:
// running pods keep their monitor.
package monitor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"carob/internal/base/openfile"
	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/wire"
)

// Messages of csrc/monitor.c.
const (
	msgSetup = 1 + iota
	msgStart
	msgExec
	msgKill
	msgReopen
	msgAttach
	msgList
	msgQuit
	msgBegun
	msgShown
	msgPrepare

	replyDone     = 32
	eventExit     = 33
	eventExecExit = 34
	eventPodExit  = 35
)

// Flags of a container's start; the others say which files the request carries.
const (
	FlagStdin = 1 << iota
	FlagStdinOnce
	FlagTTY
	flagOOMFile
	flagCgroupFD
	flagListen
	flagNetNS
	flagPodPID
	flagOwner
	flagLogFD
	flagNews
	flagLate
	flagPrepared
	flagQuiet
)

// In which PID namespace a container's process is.
const (
	PIDNew    = iota // in its own
	PIDPod           // in the one that the pod shares
	PIDTarget        // in that of another container
	PIDHost          // in the host's
)

// Frames of an attach stream.
const (
	frameStdin, frameResize, frameClose = 0, 1, 2 // to the monitor
	frameStdout, frameStderr            = 1, 2    // from it
	frameDropped                        = 3       // the last one, to a client that is too slow
)

// MaxListed is how many containers fit in one answer to msgList (csrc/monitor.c).
const MaxListed = 7999 / 65

const monitorSocket = "monitor.sock"

// ErrGone means that the connection to a monitor is closed.
var ErrGone = errors.New("the pod's monitor is gone")

// Monitor is this process's connection to one pod's monitor. It may be used by several goroutines.
type Monitor struct {
	conn *net.UnixConn
	cmd  *exec.Cmd // nil if an earlier carob started it

	sending chan struct{} // holds a token while a request is written: its deadline is the connection's

	mu      sync.Mutex
	version int // the monitor's PROTOCOL (csrc/monitor.h), 0 before its first answer
	seq     uint32
	waiting map[uint32]chan wire.Message
	// timeout is how long a request waits for its answer.
	timeout time.Duration
	execs   map[uint32]chan Ended
	event   func(Event)
	early   []Event // received before Listen was called
	waits   *Waiting

	broken chan struct{} // closed when the connection is lost
}

// Event is the exit of a process of a monitor.
type Event struct {
	Container string // "" for the first process of a PID namespace that the pod shares
	Code      int32  // as in a shell: 128 plus the signal's number for a kill
	At        int64  // ns since 1970
	OOM       bool   // the kernel killed a process of the container for lack of memory
}

// Gone returns a channel that is closed when the connection is lost.
func (m *Monitor) Gone() <-chan struct{} { return m.broken }

// Close closes the connection. The monitor of a pod keeps running; one without a pod exits.
func (m *Monitor) Close() {
	m.Drop()
	m.conn.Close()
}

// PID is the monitor's process ID; 0 if an earlier carob started it.
func (m *Monitor) PID() int {
	if m.cmd == nil {
		return 0
	}
	return m.cmd.Process.Pid
}

// StartMonitor starts a monitor that belongs to no pod yet. It enters the given cgroups and ends
// with this process until Setup.
func (p *Programs) StartMonitor(place cgroups.Entry) (*Monitor, error) {
	program, err := p.theMonitor()
	if err != nil {
		return nil, fmt.Errorf("starting a monitor: %w", err)
	}
	defer runtime.KeepAlive(program)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("starting a monitor: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "monitor"), os.NewFile(uintptr(fds[1]), "monitor")
	defer ours.Close()
	defer theirs.Close()
	cmd := command(program, theirs)
	cmd.Args = []string{"carob-monitor"}
	cmd.Env = append([]string{}, place.Tasks...) // nil would mean the environment of carob
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	group, err := place.Open()
	if err != nil {
		return nil, fmt.Errorf("opening the cgroup of monitors: %w", err)
	}
	defer group.Close() // nil for none; Close accepts that
	if group != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, openfile.FD(group)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a monitor: %w", err)
	}
	conn, err := openfile.UnixConn(ours)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return newMonitor(conn, cmd), nil
}

// command executes a program, with files as its descriptors from 3 on, and after them the program itself. The number
// that it has here is another file in some children: Go's runtime moves descriptors to the numbers after the highest of
// those that a child inherits.
func command(program *os.File, files ...*os.File) *exec.Cmd {
	return &exec.Cmd{Path: fmt.Sprintf("/proc/self/fd/%d", 3+len(files)), ExtraFiles: append(files, program)}
}

// Dial connects to the monitor of a pod that an earlier carob started.
func Dial(dir string) (*Monitor, error) {
	c, err := DialConn(dir)
	if err != nil {
		return nil, err
	}
	return newMonitor(c, nil), nil
}

// DialConn opens another connection to the monitor of a pod, whose directory is dir.
func DialConn(dir string) (*net.UnixConn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the monitor's directory: %w", err)
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("dialling a monitor: %w", err)
	}
	f := os.NewFile(uintptr(fd), "monitor")
	defer f.Close()
	// The path of the directory may be too long for the name of a socket.
	if err := unix.Connect(fd,
		&unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), monitorSocket)}); err != nil {
		return nil, fmt.Errorf("dialling the monitor of %s: %w", filepath.Base(dir), err)
	}
	return openfile.UnixConn(f)
}

// Listen creates the socket by which a later carob finds the monitor.
func Listen(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the monitor's directory: %w", err)
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("making the monitor's socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), monitorSocket)})
	if err == nil {
		err = unix.Listen(fd, 64)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("making the monitor's socket: %w", err)
	}
	return f, nil
}

func newMonitor(c *net.UnixConn, cmd *exec.Cmd) *Monitor {
	m := &Monitor{conn: c, cmd: cmd, sending: make(chan struct{}, 1), timeout: answerTime,
		waiting: map[uint32]chan wire.Message{}, execs: map[uint32]chan Ended{}, broken: make(chan struct{})}
	go m.receive()
	return m
}

// Listen passes every event, also those received before, to f, one at a time.
func (m *Monitor) Listen(f func(Event)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.early {
		f(e)
	}
	m.early, m.event = nil, f
}

func (m *Monitor) receive() {
	in, err := m.conn.SyscallConn()
	for err == nil {
		var r wire.Message
		if r, err = receiveMessage(in); err == nil {
			m.handle(r)
		}
	}
	m.Close()
	m.mu.Lock()
	close(m.broken)
	m.mu.Unlock()
	if m.cmd != nil {
		reap(m.cmd)
	}
}

// handle passes a message to its receiver.
func (m *Monitor) handle(r wire.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch r.Code {
	case replyDone:
		m.version = int(r.Flags)
		if ch := m.waiting[r.Seq]; ch != nil {
			ch <- r
			delete(m.waiting, r.Seq)
		} else if ch, err := m.execs[r.Seq], failure(r); ch != nil && err != nil { // a quiet one
			ch <- Ended{Err: err}
			delete(m.execs, r.Seq)
		}
	case eventExecExit:
		if ch := m.execs[r.Seq]; ch != nil {
			ch <- Ended{Code: int32(r.N[0])}
			delete(m.execs, r.Seq)
		}
	case eventExit, eventPodExit:
		e := Event{Container: r.S[0], Code: int32(r.N[0]), At: r.N[1], OOM: r.N[2] != 0}
		if m.event == nil {
			m.early = append(m.early, e)
		} else {
			m.event(e)
		}
	}
}

// call sends one request and waits for its answer. The kernel copies files into the message; the
// caller keeps and closes its own. The answer takes microseconds, so call waits for it even if its
// caller is cancelled: it must know what was started.
func (m *Monitor) call(r wire.Message, files ...*os.File) (wire.Message, error) {
	m.mu.Lock()
	m.seq++
	r.Seq = m.seq
	ch := make(chan wire.Message, 1)
	m.waiting[r.Seq] = ch
	m.mu.Unlock()
	a, err := m.exchange(context.Background(), r, ch, files)
	if err != nil {
		m.forget(r.Seq) // no answer came, or none will be used
	}
	return a, err
}

// answerTime is how long a monitor may take for an answer: it may wait for the disk of a log.
const answerTime = 30 * time.Second

// errSilent: the monitor has the request, and may carry it out later. errFull: it does not have it.
var (
	errSilent = errors.New("the pod's monitor does not answer")
	errFull   = errors.New("the pod's monitor reads no requests")
)

// forget ends the wait for the answer to a request.
func (m *Monitor) forget(seq uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waiting, seq)
	delete(m.execs, seq)
}

// failure is the error in an answer.
func failure(a wire.Message) error {
	errno := unix.Errno(a.N[0])
	switch {
	case errno == 0:
		return nil
	case a.S[0] != "":
		return fmt.Errorf("%s: %w", a.S[0], errno)
	}
	return errno
}

// send writes a request. A monitor that hangs reads none: when its socket is full, a request waits for room until the
// caller's deadline, or as long as for an answer.
func (m *Monitor) send(ctx context.Context, r wire.Message, files []*os.File) error {
	if err := r.Check(); err != nil {
		return err
	}
	until := time.Now().Add(m.timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	select {
	case m.sending <- struct{}{}:
	default:
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		select {
		case m.sending <- struct{}{}:
		case <-m.broken:
			return ErrGone
		case <-ctx.Done():
			return errFull
		}
	}
	defer func() { <-m.sending }()
	if err := m.conn.SetWriteDeadline(until); err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = openfile.FD(f)
		}
		oob = unix.UnixRights(fds...)
	}
	_, _, err := m.conn.WriteMsgUnix(r.Append(nil), oob, nil)
	runtime.KeepAlive(files)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errFull
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return nil
}

func (m *Monitor) exchange(ctx context.Context, r wire.Message, ch chan wire.Message,
	files []*os.File) (wire.Message, error) {
	if err := m.send(ctx, r, files); err != nil {
		return wire.Message{}, err
	}
	select {
	case <-ctx.Done():
		return wire.Message{}, fmt.Errorf("%w: %w", errSilent, ctx.Err())
	case a := <-ch:
		return a, failure(a)
	case <-m.broken:
		return wire.Message{}, ErrGone
	case <-time.After(m.timeout):
		return wire.Message{}, errSilent
	}
}

// Setup assigns the monitor to a pod.
func (m *Monitor) Setup(s PodSetup) error {
	r := wire.Message{Code: msgSetup, N: [4]int64{flagListen, int64(s.Unshare), int64(s.Join)},
		S: [4]string{s.Hostname}}
	files := []*os.File{s.Listener}
	if s.NetNS != nil {
		r.N[0] |= flagNetNS
		files = append(files, s.NetNS)
	}
	if s.Owner != nil {
		r.N[0] |= flagOwner
		files = append(files, s.Owner)
	}
	if s.SharePID {
		r.N[0] |= flagPodPID
	}
	sysctls, err := EncodeSysctls(s.Sysctls)
	if err != nil {
		return fmt.Errorf("setting up the pod's sysctls: %w", err)
	}
	r.Flags, r.S[1] = wire.Bytes<<1, sysctls
	if _, err := m.call(r, files...); err != nil {
		return fmt.Errorf("setting up the pod's namespaces: %w", err)
	}
	return nil
}

// Start starts the helper of a container and returns its process ID.
func (m *Monitor) Start(s ContainerStart) (pid int, err error) {
	files := []*os.File{s.Helper, s.Spec, s.Status, s.Dir}
	if s.Prepared {
		s.Flags |= flagPrepared
		files = files[3:]
	}
	if s.OOM != nil {
		s.Flags |= flagOOMFile
		files = append(files, s.OOM)
	}
	if s.Cgroup != nil {
		s.Flags |= flagCgroupFD
		files = append(files, s.Cgroup)
	}
	if s.Log != nil && m.Protocol() >= 2 {
		s.Flags |= flagLogFD
		files = append(files, s.Log)
	}
	s.Flags |= m.newsFlags(s.Late)
	a, err := m.call(wire.Message{Code: msgStart, N: [4]int64{int64(s.Flags), int64(s.PIDMode)},
		S: [4]string{s.ID, s.LogPath, s.Target}}, files...)
	if err != nil {
		return 0, fmt.Errorf("starting the container's process: %w", err)
	}
	return int(a.N[1]), nil
}

// Kill signals a container's first process; the error is unix.ESRCH if it has ended.
func (m *Monitor) Kill(id string, sig unix.Signal) error {
	_, err := m.call(wire.Message{Code: msgKill, N: [4]int64{int64(sig)}, S: [4]string{id}})
	return err
}

// ReopenLog makes log the container's log; nil for a container without one. A monitor of an earlier release opens the
// path of the start.
func (m *Monitor) ReopenLog(id string, log *os.File) error {
	r := wire.Message{Code: msgReopen, S: [4]string{id}}
	if log == nil || m.Protocol() < 2 {
		_, err := m.call(r)
		return err
	}
	_, err := m.call(r, log)
	return err
}

// newsFlags make the monitor listen to the helper.
func (m *Monitor) newsFlags(late bool) int {
	switch {
	case m.Protocol() < 2:
		return 0
	case late:
		return flagNews | flagLate
	}
	return flagNews
}

// Begun waits until the helper of a container has become the user's process, and returns its ID; the error is
// unix.ESRCH if it ended before.
func (m *Monitor) Begun(id string) (began bool, pid int, err error) {
	a, err := m.call(wire.Message{Code: msgBegun, S: [4]string{id}})
	return a.N[1] != 0, int(a.N[2]), err
}

// Shown drops the output of a container that the monitor holds for its first client, as far as the
// log has it. If the monitor holds none (it is of an earlier release, has forgotten the container,
// or is sending it to a client), nothing happens.
func (m *Monitor) Shown(ctx context.Context, id string) error {
	done := make(chan error, 1)
	go func() { // the monitor may wait for the log's disk: the call then ends by its own timeout
		_, err := m.call(wire.Message{Code: msgShown, S: [4]string{id}})
		done <- err
	}()
	select {
	case err := <-done:
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ESRCH) {
			return nil
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Protocol returns the version that the monitor speaks, 0 before its first answer.
func (m *Monitor) Protocol() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version
}

// List returns the running containers.
func (m *Monitor) List() (map[string]bool, error) {
	ids := map[string]bool{}
	for {
		known := len(ids)
		a, err := m.call(wire.Message{Code: msgList, N: [4]int64{int64(known)}})
		if err != nil {
			return nil, err
		}
		for id := range strings.FieldsSeq(a.S[0]) {
			ids[id] = true
		}
		// An answer holds some hundred; a monitor of the first protocol returns no more.
		if len(ids)-known < MaxListed || m.Protocol() < 2 {
			return ids, nil
		}
	}
}

// Quit ends the monitor. Running containers lose their parent: kill them first.
func (m *Monitor) Quit() {
	_, _ = m.call(wire.Message{Code: msgQuit}) // one that does not answer has ended
	m.Close()
}
