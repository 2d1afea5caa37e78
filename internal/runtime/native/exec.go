package native

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	"carob/internal/runtime/native/stdio"
)

// promptly is how long a command may run until its collected output is read while it runs: most have ended by then.
const promptly = 100 * time.Millisecond

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
	res, err := r.execCollected(run, c, req, timeout > 0)
	if errors.Is(err, monitor.ErrChanged) { // nothing was executed; the file may change again and again
		res, err = r.execCollected(run, c, req, false)
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

func (r *Runtime) execCollected(ctx context.Context, c *container, req *cri.ExecSyncRequest,
	planned bool) (*cri.ExecSyncResponse, error) {
	collected, err := output.New()
	if err != nil {
		return nil, err
	}
	defer collected.Close()
	code, err := r.exec(ctx, c, execCall{cmd: req.Cmd, caller: stdio.Caller{Collected: collected},
		planned: planned})
	if err != nil {
		return nil, fmt.Errorf("failed to exec in container: %w", err)
	}
	return &cri.ExecSyncResponse{Stdout: collected.Text(0), Stderr: collected.Text(1), ExitCode: code}, nil
}

// execCall is one additional process in a container.
type execCall struct {
	cmd     []string
	caller  stdio.Caller
	planned bool // may be planned for the files that the last exec found; only if ctx has a deadline
}

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
	simple := call.caller.Collected != nil && (pl.Filter == nil || pl.Filter.Agent == nil)
	var p *plan.Program
	var code []byte
	// Without a deadline, a monitor that hangs is noticed because it does not answer.
	if simple && call.planned && r.alter == nil {
		p, code = c.execs.Planned(pl, call.cmd, rec.User, fork)
	}
	if p == nil {
		p = pl.ExecProgram(call.cmd, call.caller.TTY, 0, 0, *rec.User, fork, nil)
	}
	streams, err := stdio.Open(call.caller)
	if err != nil {
		return 0, err
	}
	defer streams.Close()
	x := monitor.ExecStart{ID: rec.ID, Stdio: streams.Theirs, TTY: call.caller.TTY, Late: fork, Quiet: p.Planned()}
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
			run.End()
		}
	}
	defer kill() // on every path, the process does not outlive the call
	start := func(spec, report *os.File) (int, error) {
		x.Spec, x.Status = spec, report
		var err error
		if run, err = m.Exec(ctx, x); err != nil {
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
	if err := streams.Copy(); err != nil {
		return 0, err
	}
	end, err := await(ctx, m, run.Done, call.caller.Collected)
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
	streams.Drain(ctx)
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

// await waits for the end of a process. Output that is collected is complete then, but for what processes that it left
// behind write; nil: none is.
func await(ctx context.Context, m *monitor.Monitor, done <-chan monitor.Ended,
	collected *output.Collector) (end monitor.Ended, err error) {
	var late <-chan time.Time
	if collected != nil {
		timer := time.NewTimer(promptly)
		defer timer.Stop()
		late = timer.C
	}
	for {
		select {
		case <-late:
			collected.Follow()
		case end = <-done:
			if collected != nil {
				collected.Finish()
			}
			return end, nil
		case <-ctx.Done():
			return end, ctx.Err()
		case <-m.Gone():
			return end, monitor.ErrGone
		}
	}
}
