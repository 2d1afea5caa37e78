package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/openfile"
	"carob/internal/base/seconds"
	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/output"
	"carob/internal/runtime/native/plan"
)

// promptly is how long a command may run until its collected output is read while it runs: most have ended by then.
const promptly = 100 * time.Millisecond

// outputDrain is how long ExecSync continues to read output after the process has ended, while a
// process that it left behind still has its streams open: a hook or a probe does not wait for a
// daemon.
const outputDrain = time.Second

// clientCheck is how often exec checks whether the client of a process's remaining output is still
// connected.
const clientCheck = time.Second

// ExecSync runs a command and returns its output, at most 16 MiB of each stream. A timeout kills
// the command and has the code DeadlineExceeded (L5.20).
func (r *Runtime) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if len(req.GetCmd()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "exec needs a command")
	}
	run := ctx
	timeout := seconds.Duration(req.GetTimeout())
	if timeout > 0 {
		var cancel context.CancelFunc
		run, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	res, err := r.execCollected(run, c, req)
	if errors.Is(err, monitor.ErrChanged) { // nothing was executed
		res, err = r.execCollected(run, c, req)
	}
	if err != nil && ctx.Err() == nil && run.Err() != nil { // it may also end while only what is left behind writes
		return nil, status.Errorf(codes.DeadlineExceeded, "failed to exec in container: timeout %v exceeded: %v",
			timeout, context.DeadlineExceeded)
	}
	if err != nil {
		return nil, coded(err)
	}
	return res, nil
}

func (r *Runtime) execCollected(ctx context.Context, c *container, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse,
	error) {
	collected, err := output.New()
	if err != nil {
		return nil, err
	}
	defer collected.Close()
	code, err := r.exec(ctx, c, execCall{cmd: req.Cmd, collected: collected, limited: req.Timeout > 0})
	if err != nil {
		return nil, fmt.Errorf("failed to exec in container: %w", err)
	}
	return &cri.ExecSyncResponse{Stdout: collected.Text(0), Stderr: collected.Text(1), ExitCode: code}, nil
}

// execCall is one additional process in a container; nil streams are not connected.
type execCall struct {
	cmd      []string
	in       io.Reader
	out, err io.Writer
	tty      bool
	resize   <-chan terminalSize
	client   bool // the client reads as long as there is output
	limited  bool // ctx has a deadline

	collected *output.Collector // takes the output instead of out and err; nil for none
}

// gone reports whether the client has disconnected: a write of zero bytes fails then.
func (c *execCall) gone() bool {
	if c.err == nil && c.out == io.Discard {
		return true
	}
	for _, w := range []io.Writer{c.out, c.err} {
		if w != nil {
			if _, err := w.Write(nil); err != nil {
				return true
			}
		}
	}
	return false
}

type terminalSize struct{ rows, cols uint16 }

// exec runs a process and copies its streams until it has ended. When ctx ends, the process is
// killed. A command that cannot be executed is an error.
func (r *Runtime) exec(ctx context.Context, c *container, call execCall) (int32, error) {
	m := c.sandbox.line()
	if m == nil || !c.running() {
		return 0, status.Errorf(codes.FailedPrecondition, "container %q is not running", c.rec.ID)
	}
	pl, err := r.planOf(ctx, c)
	if err != nil {
		return 0, err
	}
	rec := c.record()
	if rec.User == nil {
		return 0, status.Errorf(codes.Internal, "the user of container %q is not known", rec.ID)
	}
	_, mode, _ := startFlags(c)
	fork := mode != monitor.PIDHost && r.lateForks(c.sandbox)
	simple := call.collected != nil && (pl.Filter == nil || pl.Filter.Agent == nil)
	var p *plan.Program
	var code []byte
	// Without a deadline, a monitor that hangs is noticed because it does not answer.
	if simple && call.limited && r.alter == nil {
		p, code = c.execs.Planned(pl, call.cmd, rec.User, fork)
	}
	if p == nil {
		p = pl.ExecProgram(call.cmd, call.tty, 0, 0, *rec.User, fork, nil)
	}
	io_, err := openStreams(call)
	if err != nil {
		return 0, err
	}
	defer io_.close()
	x := monitor.ExecStart{ID: rec.ID, Stdio: io_.theirs, TTY: call.tty, Late: fork, Quiet: p.Planned()}
	if x.Helper, err = r.programs.Helper(); err != nil {
		return 0, err
	}
	place := r.groups.Entry(pl.Cgroup)
	if x.Cgroup, err = place.Open(); err != nil {
		return 0, fmt.Errorf("opening the container's cgroup: %w", err)
	}
	defer x.Cgroup.Close() // nil on version 1; Close accepts that
	var run *monitor.Exec
	kill := func() {
		if run != nil {
			_ = run.Kill(unix.SIGKILL) // has usually ended
		}
	}
	defer kill() // on every path, the process does not outlive the call
	start := func(spec, report *os.File) (int, error) {
		x.Spec, x.Status = spec, report
		var err error
		if run, err = m.Exec(x); err != nil {
			return 0, notStarted(err, rec.ID)
		}
		return run.PID, nil
	}
	outcome := func() error { return nil }
	if simple {
		session, line := monitor.Session{Program: p}, (*monitor.LateLine)(nil)
		line, err = r.execLate(ctx, p, code, &session, start, kill)
		if line != nil {
			defer line.Close()
		}
		if len(session.Files) == 1 {
			c.execs.Keep(session.Files[0])
		}
		outcome = func() error { return line.Outcome(&session) }
	} else {
		_, _, err = r.runProgram(ctx, pl, p, helperLine{}, specs.StateRunning, nil, start, kill)
	}
	if err != nil {
		return 0, fmt.Errorf("exec failed: %w", err)
	}
	copied, err := io_.copy(call)
	if err != nil {
		return 0, err
	}
	end, err := call.await(ctx, m, run.Done)
	if err != nil {
		return 0, err
	}
	run = nil
	if end.Err != nil {
		return 0, fmt.Errorf("exec failed: %w", notStarted(end.Err, rec.ID))
	}
	err = outcome()
	if errors.Is(err, monitor.ErrChanged) {
		c.execs.Keep(nil)
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("exec failed: %w", initFailed(err))
	}
	call.drain(ctx, copied)
	return end.Code, nil
}

// notStarted is the error of a start that the monitor refused.
func notStarted(err error, id string) error {
	if errors.Is(err, unix.ESRCH) {
		return status.Errorf(codes.FailedPrecondition, "container %q is not running", id)
	}
	return err
}

// execLate runs the program of a command whose end is waited for, until the helper has all that it needs. Its last
// reports are read at the command's end: each one that is waited for wakes a thread.
func (r *Runtime) execLate(ctx context.Context, p *plan.Program, code []byte, session *monitor.Session,
	start func(spec, report *os.File) (int, error), kill func()) (*monitor.LateLine, error) {
	if r.alter != nil {
		r.alter(p)
	}
	var err error
	if code == nil {
		if code, err = p.Encode(); err != nil {
			return nil, err
		}
	}
	spec, err := openfile.MemoryFile("spec", code)
	if err != nil {
		return nil, err
	}
	defer spec.Close()
	line, theirs, err := monitor.NewLateLine()
	if err != nil {
		return nil, err
	}
	_, err = start(spec, theirs)
	theirs.Close()
	if err != nil || p.Planned() { // all that it needs is in the program
		return line, err
	}
	stop := context.AfterFunc(ctx, kill)
	err = line.Answer(session)
	if !stop() && ctx.Err() != nil {
		return line, ctx.Err()
	}
	if err != nil {
		return line, initFailed(err)
	}
	return line, nil
}

// await waits for the end of the process. Collected output is complete then, but for what processes that it left behind
// write.
func (c *execCall) await(ctx context.Context, m *monitor.Monitor, done <-chan monitor.Ended) (end monitor.Ended,
	err error) {
	var late <-chan time.Time
	if c.collected != nil {
		timer := time.NewTimer(promptly)
		defer timer.Stop()
		late = timer.C
	}
	for {
		select {
		case <-late:
			c.collected.Follow()
		case end = <-done:
			if c.collected != nil {
				c.collected.Finish()
			}
			return end, nil
		case <-ctx.Done():
			return end, ctx.Err()
		case <-m.Gone():
			return end, monitor.ErrGone
		}
	}
}

// drain continues to read after the process has ended, as containerd and CRI-O do: until all
// processes that it left behind have closed its streams, or the client has disconnected.
func (c *execCall) drain(ctx context.Context, copied <-chan struct{}) {
	wait := outputDrain
	if c.client {
		wait = clientCheck
	}
	select {
	case <-copied: // usually; without a timer
		return
	default:
	}
	for {
		select {
		case <-copied:
			return
		case <-ctx.Done():
			return
		case <-time.After(wait):
			if !c.client || c.gone() {
				return
			}
		}
	}
}

// streams are both ends of a process's stdin, stdout, and stderr, or of the socket that passes its
// terminal.
type streams struct {
	theirs [3]*os.File
	ours   [3]*os.File
	tty    bool
	once   sync.Once
}

func openStreams(call execCall) (s *streams, err error) {
	s = &streams{tty: call.tty}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if call.collected != nil {
		s.theirs[1], s.theirs[2] = call.collected.Theirs[0], call.collected.Theirs[1]
		s.theirs[0], err = null()
		return s, err
	}
	if call.tty {
		for i := range 2 {
			if s.theirs[i], err = null(); err != nil {
				return s, err
			}
		}
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return s, fmt.Errorf("making the console's socket: %w", err)
		}
		s.ours[2], s.theirs[2] = os.NewFile(uintptr(fds[0]), "console"), os.NewFile(uintptr(fds[1]), "console")
		return s, nil
	}
	for i, wanted := range []bool{call.in != nil, call.out != nil, call.err != nil} {
		switch {
		case !wanted:
			s.theirs[i], err = null()
		case i == 0:
			s.theirs[i], s.ours[i], err = os.Pipe()
		default:
			s.ours[i], s.theirs[i], err = os.Pipe()
		}
		if err != nil {
			return s, fmt.Errorf("making the process's streams: %w", err)
		}
		s.theirs[i].Fd() // programs expect blocking streams
	}
	return s, nil
}

// null opens /dev/null for a process. os.OpenFile would offer it to the poller.
func null() (*os.File, error) {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/null: %w", err)
	}
	return os.NewFile(uintptr(fd), "/dev/null"), nil
}

// copy starts copying; the channel is closed when all output has been copied.
func (s *streams) copy(call execCall) (<-chan struct{}, error) {
	for i := range s.theirs {
		s.theirs[i].Close()
	}
	if call.collected != nil {
		return call.collected.Done(), nil
	}
	done := make(chan struct{})
	if s.tty {
		master, err := monitor.ReceiveTerminal(s.ours[2])
		if err != nil {
			return nil, err
		}
		s.ours[0] = master
		if call.resize != nil {
			go func() {
				for size := range call.resize {
					monitor.ResizeTerminal(master, size.rows, size.cols)
				}
			}()
		}
		if call.in != nil {
			go func() { _, _ = io.Copy(master, call.in) }() // ends with the process or with the client
		}
		go func() {
			defer close(done)
			_, _ = io.Copy(call.out, master) // ends with EIO when the last process closes it
			master.Close()                   // or with a client that stops reading: the processes get SIGHUP
		}()
		return done, nil
	}
	if call.resize != nil {
		go func() {
			for range call.resize {
			}
		}()
	}
	if call.in != nil {
		in := s.ours[0]
		go func() {
			_, _ = io.Copy(in, call.in) // a process that stops reading is not a failure
			in.Close()                  // the process gets end of file
		}()
	}
	var wg sync.WaitGroup
	for i, w := range map[int]io.Writer{1: call.out, 2: call.err} {
		if s.ours[i] == nil {
			continue
		}
		wg.Go(func() {
			_, _ = io.Copy(w, s.ours[i]) // a client that stops reading is not a failure
			s.ours[i].Close()            // but a process that still writes gets an error
		})
	}
	go func() {
		wg.Wait()
		close(done)
	}()
	return done, nil
}

func (s *streams) close() {
	s.once.Do(func() {
		for i := range s.theirs {
			for _, f := range []*os.File{s.theirs[i], s.ours[i]} {
				if f != nil {
					f.Close()
				}
			}
		}
	})
}
