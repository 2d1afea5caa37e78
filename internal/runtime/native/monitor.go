package native

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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

	ReplyDone     = 32
	eventExit     = 33
	eventExecExit = 34
	eventPodExit  = 35
)

const (
	flagStdin = 1 << iota
	flagStdinOnce
	flagTTY
	flagOOMFile
	flagCgroupFD
	flagListen
	flagNetNS
	flagPodPID
	flagOwner
	flagLogFD
	flagNews
	flagLate
)

// Where a container's process IDs live.
const (
	pidNew = iota
	pidPod
	pidTarget
	pidHost
)

// Frames of an attach stream.
const (
	frameStdin, frameResize, frameClose = 0, 1, 2 // to the monitor
	frameStdout, frameStderr            = 1, 2    // from it
)

// maxListed is how many containers one answer to msgList holds (csrc/monitor.c).
const maxListed = 7999 / 65

const monitorSocket = "monitor.sock"

var errMonitorGone = errors.New("the pod's monitor is gone")

// monitor is this process's end of the line to one pod's monitor. It may be
// called from many goroutines.
type monitor struct {
	conn *net.UnixConn
	cmd  *exec.Cmd // nil when an earlier carob started it

	mu      sync.Mutex
	version int // the monitor's PROTOCOL (csrc/monitor.h), 0 before its first answer
	seq     uint32
	waiting map[uint32]chan wire.Message
	execs   map[uint32]chan wire.Message
	event   func(wire.Message)
	early   []wire.Message // events that came before anyone listened

	gone chan struct{} // closed when the line is broken
}

// startMonitor starts a monitor that belongs to no pod yet. It enters the given
// cgroups and ends with this process until setup.
func (p *programs) startMonitor(place cgroups.Entry) (*monitor, error) {
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
	cmd := &exec.Cmd{
		Path:        fmt.Sprintf("/proc/self/fd/%d", rawFD(program)),
		Args:        []string{"carob-monitor"},
		Env:         append([]string{}, place.Tasks...), // nil would be our environment
		Dir:         "/",
		ExtraFiles:  []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	group, err := place.Open()
	if err != nil {
		return nil, fmt.Errorf("opening the cgroup of monitors: %w", err)
	}
	defer group.Close() // nil for none, which Close takes
	if group != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, rawFD(group)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a monitor: %w", err)
	}
	conn, err := unixConn(ours)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	m := newMonitor(conn)
	m.cmd = cmd
	go func() { _ = cmd.Wait() }() // reaps it; how it ended says its line
	return m, nil
}

// dialMonitor finds the monitor of a pod that an earlier carob started.
func dialMonitor(dir string) (*monitor, error) {
	c, err := dialMonitorConn(dir)
	if err != nil {
		return nil, err
	}
	return newMonitor(c), nil
}

func dialMonitorConn(dir string) (*net.UnixConn, error) {
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
	// The path of the directory may be longer than a socket's name can be.
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), monitorSocket)}); err != nil {
		return nil, fmt.Errorf("dialling the monitor of %s: %w", filepath.Base(dir), err)
	}
	return unixConn(f)
}

func unixConn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("using a helper's or monitor's socket: %w", err)
	}
	return c.(*net.UnixConn), nil
}

// listenMonitor makes the socket by which a later carob finds the monitor.
func listenMonitor(dir string) (*os.File, error) {
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

func newMonitor(c *net.UnixConn) *monitor {
	m := &monitor{conn: c, waiting: map[uint32]chan wire.Message{}, execs: map[uint32]chan wire.Message{}, gone: make(chan struct{})}
	go m.receive()
	return m
}

// listen hands every event, also those that came already, to f, one at a time.
func (m *monitor) listen(f func(wire.Message)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.early {
		f(r)
	}
	m.early, m.event = nil, f
}

func (m *monitor) receive() {
	b := make([]byte, 16<<10)
	for {
		n, err := m.conn.Read(b)
		if err != nil || n == 0 {
			break
		}
		r, err := wire.Parse(b[:n])
		if err != nil {
			break
		}
		m.mu.Lock()
		switch r.Code {
		case ReplyDone:
			m.version = int(r.Flags)
			if ch := m.waiting[r.Seq]; ch != nil {
				ch <- r
				delete(m.waiting, r.Seq)
			}
		case eventExecExit:
			if ch := m.execs[r.Seq]; ch != nil {
				ch <- r
				delete(m.execs, r.Seq)
			}
		default:
			if m.event == nil {
				m.early = append(m.early, r)
			} else {
				m.event(r)
			}
		}
		m.mu.Unlock()
	}
	m.conn.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.gone)
}

// call sends one request and waits for its answer. The kernel copies files into
// the message; the caller keeps and closes its own. The answer takes microseconds
// and is waited for whoever has lost interest meanwhile, so that what was started
// is known.
func (m *monitor) call(r wire.Message, files ...*os.File) (wire.Message, error) {
	m.mu.Lock()
	m.seq++
	r.Seq = m.seq
	ch := make(chan wire.Message, 1)
	m.waiting[r.Seq] = ch
	m.mu.Unlock()
	return m.exchange(r, ch, files)
}

func (m *monitor) exchange(r wire.Message, ch chan wire.Message, files []*os.File) (wire.Message, error) {
	if err := r.Check(); err != nil {
		return wire.Message{}, err
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = rawFD(f)
		}
		oob = unix.UnixRights(fds...)
	}
	_, _, err := m.conn.WriteMsgUnix(r.Append(nil), oob, nil)
	runtime.KeepAlive(files)
	if err != nil {
		return wire.Message{}, fmt.Errorf("%w: %w", errMonitorGone, err)
	}
	select {
	case a := <-ch:
		if errno := unix.Errno(a.N[0]); errno != 0 {
			if a.S[0] != "" {
				return a, fmt.Errorf("%s: %w", a.S[0], errno)
			}
			return a, errno
		}
		return a, nil
	case <-m.gone:
		return wire.Message{}, errMonitorGone
	case <-time.After(30 * time.Second):
		return wire.Message{}, fmt.Errorf("the pod's monitor does not answer")
	}
}

// rawFD is f's descriptor, without making it blocking as File.Fd does.
func rawFD(f *os.File) int {
	fd := -1
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(p uintptr) { fd = int(p) }) // fails for a closed file, which has none
	}
	return fd
}

// podSetup is what makes a monitor a pod's.
type podSetup struct {
	listener *os.File
	netns    *os.File // nil: the host's
	unshare  int      // CLONE_NEW* to make
	owner    *os.File // pidfd of a process in namespaces to join, nil for none
	join     int      // which of them, CLONE_NEW*
	hostname string
	sysctls  map[string]string // path relative to /proc/sys → value
	sharePID bool
}

// encodeSysctls is the message's part with names and values. A test that runs a monitor
// of the first release speaks to it as that release did.
var encodeSysctls = func(sysctls map[string]string) (string, error) {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		list = append(list, name, sysctls[name])
	}
	return wire.Pack(list)
}

func (m *monitor) setup(s podSetup) error {
	r := wire.Message{Code: msgSetup, N: [4]int64{flagListen, int64(s.unshare), int64(s.join)}, S: [4]string{s.hostname}}
	files := []*os.File{s.listener}
	if s.netns != nil {
		r.N[0] |= flagNetNS
		files = append(files, s.netns)
	}
	if s.owner != nil {
		r.N[0] |= flagOwner
		files = append(files, s.owner)
	}
	if s.sharePID {
		r.N[0] |= flagPodPID
	}
	sysctls, err := encodeSysctls(s.sysctls)
	if err != nil {
		return fmt.Errorf("setting up the pod's sysctls: %w", err)
	}
	r.Flags, r.S[1] = wire.Bytes<<1, sysctls
	if _, err := m.call(r, files...); err != nil {
		return fmt.Errorf("setting up the pod's namespaces: %w", err)
	}
	return nil
}

// containerStart is what the monitor needs to start a container.
type containerStart struct {
	id, logPath, pidTarget string
	flags, pidMode         int
	late                   bool // the helper enters the PID namespace of pidMode itself
	helper, spec, status   *os.File
	dir                    *os.File // where the exit code goes
	oom, cgroup            *os.File // may be nil
	log                    *os.File // nil for none
}

func (m *monitor) start(s containerStart) (pid int, err error) {
	files := []*os.File{s.helper, s.spec, s.status, s.dir}
	if s.oom != nil {
		s.flags |= flagOOMFile
		files = append(files, s.oom)
	}
	if s.cgroup != nil {
		s.flags |= flagCgroupFD
		files = append(files, s.cgroup)
	}
	if s.log != nil && m.protocol() >= 2 {
		s.flags |= flagLogFD
		files = append(files, s.log)
	}
	s.flags |= m.newsFlags(s.late)
	a, err := m.call(wire.Message{Code: msgStart, N: [4]int64{int64(s.flags), int64(s.pidMode)}, S: [4]string{s.id, s.logPath, s.pidTarget}}, files...)
	if err != nil {
		return 0, fmt.Errorf("starting the container's process: %w", err)
	}
	return int(a.N[1]), nil
}

// execStart is what the monitor needs to run one more process in a container.
type execStart struct {
	id                   string
	helper, spec, status *os.File
	stdio                [3]*os.File // with a terminal only the last: its console socket
	tty                  bool
	late                 bool // as in containerStart
	cgroup               *os.File
}

// running is one exec on its way.
type running struct {
	m    *monitor
	seq  uint32
	pid  int
	done chan wire.Message // its end, once
}

func (m *monitor) exec(s execStart) (*running, error) {
	r := wire.Message{Code: msgExec, S: [4]string{s.id}}
	files := []*os.File{s.helper, s.spec, s.status, s.stdio[0], s.stdio[1], s.stdio[2]}
	if s.tty {
		r.N[0] |= flagTTY
	}
	if s.cgroup != nil {
		r.N[0] |= flagCgroupFD
		files = append(files, s.cgroup)
	}
	r.N[0] |= int64(m.newsFlags(s.late))
	x := &running{m: m, done: make(chan wire.Message, 1)}
	m.mu.Lock()
	m.seq++
	x.seq, r.Seq = m.seq, m.seq
	ch := make(chan wire.Message, 1)
	m.waiting[r.Seq], m.execs[r.Seq] = ch, x.done
	m.mu.Unlock()
	a, err := m.exchange(r, ch, files)
	if err != nil {
		m.mu.Lock()
		delete(m.execs, r.Seq)
		m.mu.Unlock()
		return nil, err
	}
	x.pid = int(a.N[1])
	return x, nil
}

func (x *running) kill(sig unix.Signal) error {
	_, err := x.m.call(wire.Message{Code: msgKill, N: [4]int64{int64(sig), int64(x.seq)}})
	return err
}

// kill signals a container's first process; unix.ESRCH when it has ended.
func (m *monitor) kill(id string, sig unix.Signal) error {
	_, err := m.call(wire.Message{Code: msgKill, N: [4]int64{int64(sig)}, S: [4]string{id}})
	return err
}

// reopenLog makes log the container's; nil for a container without one. A monitor of an
// earlier release opens the path that it knows.
func (m *monitor) reopenLog(id string, log *os.File) error {
	r := wire.Message{Code: msgReopen, S: [4]string{id}}
	if log == nil || m.protocol() < 2 {
		_, err := m.call(r)
		return err
	}
	_, err := m.call(r, log)
	return err
}

// newsFlags have the monitor listen to the helper.
func (m *monitor) newsFlags(late bool) int {
	switch {
	case m.protocol() < 2:
		return 0
	case late:
		return flagNews | flagLate
	}
	return flagNews
}

// begun waits until the helper of a container has become the user's process, whose id it
// answers, or has ended without (unix.ESRCH, too).
func (m *monitor) begun(id string) (began bool, pid int, err error) {
	a, err := m.call(wire.Message{Code: msgBegun, S: [4]string{id}})
	return a.N[1] != 0, int(a.N[2]), err
}

// shown drops the output of a container that the monitor holds for its first client, as far as
// the log has it. A monitor that holds none (an earlier release's, the container is
// forgotten, a client is being given it) needs no telling.
func (m *monitor) shown(ctx context.Context, id string) error {
	done := make(chan error, 1)
	go func() { // the monitor may wait for the log's disk: then the call ends by its own bound
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

func (m *monitor) protocol() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version
}

// list answers the containers that run.
func (m *monitor) list() (map[string]bool, error) {
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
		// An answer holds some hundred; a monitor of the first protocol tells no more.
		if len(ids)-known < maxListed || m.protocol() < 2 {
			return ids, nil
		}
	}
}

// quit ends the monitor. Containers that still run lose their parent: kill them first.
func (m *monitor) quit() {
	_, _ = m.call(wire.Message{Code: msgQuit}) // one that does not answer has ended
	m.conn.Close()
}
