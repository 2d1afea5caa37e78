package monitor

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"carob/internal/runtime/native/wire"
)

// PodSetup assigns a monitor to a pod.
type PodSetup struct {
	Listener *os.File // where it answers from now on (Listen)
	NetNS    *os.File // nil: the host's
	Unshare  int      // CLONE_NEW* to create
	Owner    *os.File // pidfd of a process in namespaces to join, nil for none
	Join     int      // which of its namespaces, CLONE_NEW*
	Hostname string
	Sysctls  map[string]string // path relative to /proc/sys → value
	SharePID bool              // containers share a PID namespace; the monitor creates its first process
}

// EncodeSysctls encodes the names and values for the message. A test that runs a monitor of the
// first release encodes them as that release did.
var EncodeSysctls = func(sysctls map[string]string) (string, error) {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		list = append(list, name, sysctls[name])
	}
	return wire.Pack(list)
}

// ContainerStart is what the monitor needs to start a container.
type ContainerStart struct {
	ID, LogPath, Target  string
	Flags, PIDMode       int  // FlagStdin …, PIDNew …
	Late                 bool // the helper enters the PID namespace itself, at its end
	Prepared             bool // the helper that waits (Prepare) has its program already; the three files are not used
	Helper, Spec, Status *os.File
	Dir                  *os.File // where the exit code is written
	OOM, Cgroup          *os.File // may be nil
	Log                  *os.File // nil for none
}

// ExecStart is what the monitor needs to run an additional process in a container.
type ExecStart struct {
	ID                   string
	Helper, Spec, Status *os.File
	Stdio                [3]*os.File // with a terminal only the last: its console socket
	TTY                  bool
	Late                 bool // as in ContainerStart
	Quiet                bool // only its end is reported: nobody waits for its process ID
	Cgroup               *os.File
}

// Exec is an additional process that is being started in a container.
type Exec struct {
	m    *Monitor
	seq  uint32
	PID  int        // 0 for a quiet one
	Done chan Ended // receives its end, once
}

// Ended is the end of an Exec.
type Ended struct {
	Code int32 // as in Event
	Err  error // it did not start
}

// Exec starts the helper of an additional process in a container. A quiet one may not have started yet; if it does not,
// Done receives that. If ctx ends first, a process that starts nevertheless is killed.
func (m *Monitor) Exec(ctx context.Context, s ExecStart) (*Exec, error) {
	r := wire.Message{Code: msgExec, S: [4]string{s.ID}}
	files := []*os.File{s.Helper, s.Spec, s.Status, s.Stdio[0], s.Stdio[1], s.Stdio[2]}
	if s.TTY {
		r.N[0] |= FlagTTY
	}
	if s.Cgroup != nil {
		r.N[0] |= flagCgroupFD
		files = append(files, s.Cgroup)
	}
	r.N[0] |= int64(m.newsFlags(s.Late))
	x := &Exec{m: m, Done: make(chan Ended, 1)}
	var ch chan wire.Message
	m.mu.Lock()
	m.seq++
	x.seq, r.Seq = m.seq, m.seq
	m.execs[r.Seq] = x.Done
	if !s.Quiet {
		ch = make(chan wire.Message, 1)
		m.waiting[r.Seq] = ch
	}
	m.mu.Unlock()
	if s.Quiet { // a monitor of an earlier release answers nevertheless, which changes nothing
		r.N[0] |= flagQuiet
		if err := m.send(ctx, r, files); err != nil {
			m.forget(r.Seq)
			return nil, err
		}
		return x, nil
	}
	a, err := m.exchange(ctx, r, ch, files)
	switch {
	case errors.Is(err, errSilent):
		go x.endLate(ch) // it may start later, when it is not waited for
		return nil, err
	case err != nil:
		m.forget(r.Seq)
		return nil, err
	}
	x.PID = int(a.N[1])
	return x, nil
}

// endLate kills a process whose start was answered too late.
func (x *Exec) endLate(answer <-chan wire.Message) {
	select {
	case a := <-answer:
		if a.N[0] == 0 {
			x.killed()
		}
	case <-x.m.broken: // it has ended with the monitor, or its container ends it
	}
	x.m.forget(x.seq)
}

// killWait is how long End waits for the monitor, which answers in microseconds.
const killWait = time.Second

// End kills it, if it has not ended. If the monitor hangs, that is done when it goes on; nobody waits for it.
func (x *Exec) End() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.killed()
	}()
	late := time.NewTimer(killWait)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
}

// killed kills it. It returns when the monitor has the request, or is gone.
func (x *Exec) killed() {
	err := errFull
	for errors.Is(err, errFull) { // a request waits long for room
		_, err = x.m.call(wire.Message{Code: msgKill, N: [4]int64{int64(unix.SIGKILL), int64(x.seq)}})
	}
}
