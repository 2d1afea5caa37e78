package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/base/openfile"
	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/hooks"
	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/plan"
	"carob/internal/runtime/native/state"
)

// StartContainer starts the container's process. A program that cannot be executed is the
// container's failure: reason StartError, exit code 128. A cancelled start is not: before there is
// a process, the container stays created; afterwards, it was killed.
func (r *Runtime) StartContainer(ctx context.Context, req *cri.StartContainerRequest) (*cri.StartContainerResponse,
	error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	c.start.Lock()
	defer c.start.Unlock()
	rec := c.record()
	if rec.StartedAt != 0 || rec.FinishedAt != 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "container %q is not in created state", rec.ID)
	}
	m := c.sandbox.line()
	if m == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "sandbox %q of container %q is not ready", rec.SandboxID,
			rec.ID)
	}
	pid, user, err := r.launch(ctx, m, c, r.takeWaiting(m, c))
	if errors.Is(err, errNotWaiting) {
		pid, user, err = r.launch(ctx, m, c, nil)
	}
	if err != nil {
		err = fmt.Errorf("failed to start container %q: %w", rec.ID, err)
		givenUp := errors.Is(err, context.Canceled)
		if givenUp && pid == 0 {
			return nil, coded(errors.Join(err, r.groups.End(c.rec.Cgroup)))
		}
		r.groups.KillAll(rec.Cgroup)
		r.finish(c, func(rec *state.Container) {
			rec.FinishedAt, rec.ExitCode, rec.Reason, rec.Message = time.Now().UnixNano(), startErrorExit, "StartError",
				err.Error()
			rec.User = nil
			if givenUp {
				rec.StartedAt, rec.ExitCode, rec.Reason = rec.FinishedAt, killedExit, "Error"
			}
		})
		close(c.started)
		return nil, coded(err)
	}
	c.mu.Lock()
	c.rec.StartedAt, c.rec.Pid, c.rec.User = time.Now().UnixNano(), pid, user
	c.mu.Unlock()
	if err := r.saveContainer(c); err != nil {
		r.retries.Add("writing the record of a container that runs", rec.ID, err, func(context.Context) error {
			if err := r.saveContainer(c); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil // removed meanwhile
		})
	}
	_ = r.reached(StepStartRecord, rec.ID) // too late to fail
	r.publish(c.sandbox, rec.ID, cri.ContainerEventType_CONTAINER_STARTED_EVENT)
	close(c.started)
	select {
	case <-m.Gone():
		go r.endUnseen(c)
	default:
	}
	return &cri.StartContainerResponse{}, nil
}

// launching records the ID of the container's process before the process can begin: the next carob must recognize it if
// this one is killed now.
func (r *Runtime) launching(c *container, id *plan.Identity) error {
	c.mu.Lock()
	c.rec.LaunchedAt, c.rec.User = time.Now().UnixNano(), id
	c.mu.Unlock()
	if err := r.saveContainer(c); err != nil { // only a crash in the next milliseconds would lose it
		klog.Background().V(2).Info("Cannot write the start of a container yet; trying again",
			"container", c.rec.ID, "reason", err)
	}
	return r.reached(StepStartLaunch, c.rec.ID)
}

// endUnseen ends a container that was being started while its sandbox died, if the end of the
// sandbox did not handle it as running.
func (r *Runtime) endUnseen(c *container) {
	c.sandbox.stopping.Lock()
	defer c.sandbox.stopping.Unlock()
	if c.sandbox.line() == nil && c.running() {
		r.endLost(c)
	}
}

// endLost ends a container whose monitor is gone.
func (r *Runtime) endLost(c *container) {
	r.groups.KillAll(c.rec.Cgroup)
	e, ok, err := state.LoadExit(r.containerDir(c.rec.ID))
	if !ok || err != nil {
		e = state.Exit{Code: unknownExit, At: time.Now().UnixNano()}
	}
	r.exited(c, e)
}

// errLimitTooLow means that the memory limit is too low even for the helper; the text is runc's.
var errLimitTooLow = errors.New(
	"unable to start container process: container init was OOM-killed (memory limit of the container or its pod too low?)")

// confine makes the cgroups of a container with their limits. Until release is called they may contain a process of
// carob.
func (r *Runtime) confine(ctx context.Context, c *container, pl *plan.Container) (release func(), err error) {
	release, err = r.makeCgroup(ctx, c)
	if err := errors.Join(err, r.reached(StepStartCgroup, pl.ID)); err != nil {
		return release, err
	}
	err = r.groups.Apply(pl.Cgroup, c.resources())
	if pl.Waits && errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("%w: %w", errLimitTooLow, err) // the helper in it already needs more memory
	}
	if err := errors.Join(err, r.reached(StepStartLimits, pl.ID)); err != nil {
		return release, err
	}
	sc := c.config.GetLinux().GetSecurityContext()
	return release, errors.Join(r.groups.LimitDevices(pl.Cgroup, plan.DeviceRules(pl.Devices, sc.GetPrivileged())),
		r.reached(StepStartDevices, pl.ID))
}

// programOf returns the program of a container's helper, and its root if that was mounted ahead.
func (r *Runtime) programOf(pl *plan.Container) (*plan.Program, *os.File, error) {
	var root *os.File
	if pl.FileLabel == "" { // a label is an option of the mount
		root = r.cfg.Images.Mounted(pl.ID)
	}
	if root == nil {
		if err := r.cfg.Images.Unmounted(pl.ID); err != nil {
			return nil, nil, err
		}
	}
	with := *pl
	with.Mounted = root != nil
	p, err := with.Program()
	if err != nil {
		root.Close() // nil for none; Close accepts that
		return nil, nil, err
	}
	return p, root, nil
}

// launch makes the cgroup, has the monitor start the helper and waits until it became the user's
// process. If the helper enters its cgroups by itself (version 1), they are made while it starts. w is a helper that
// waits already, or nil; errNotWaiting means that w has ended, and that nothing was started.
func (r *Runtime) launch(ctx context.Context, m *monitor.Monitor, c *container, w *monitor.Waiting) (pid int,
	id *plan.Identity, err error) {
	if w != nil {
		defer w.Line.Close()
	}
	if err := ctx.Err(); err != nil {
		return 0, nil, err
	}
	pl, err := r.planOf(ctx, c)
	if err != nil {
		return 0, nil, err
	}
	if err := relabel(pl); err != nil {
		return 0, nil, err
	}
	p, root, err := r.programOf(pl)
	if err != nil {
		return 0, nil, err
	}
	defer root.Close() // nil for a root that the helper mounts; Close accepts that
	if w != nil {
		p.JoinFirst(monitor.Joined)
	}
	if err := r.reached(StepStartProgram, pl.ID); err != nil {
		return 0, nil, err
	}
	if pl.Waits { // all but the file that counts its OOM kills can come later
		err = r.groups.MakeFirst("memory", pl.Cgroup)
	} else {
		var release func()
		release, err = r.confine(ctx, c, pl)
		defer release()
	}
	if err != nil {
		return 0, nil, err
	}
	st := monitor.ContainerStart{ID: pl.ID, LogPath: c.rec.LogPath, Late: pl.Late, Prepared: w != nil}
	if st.Helper, err = r.programs.Helper(); err != nil {
		return 0, nil, err
	}
	st.Flags, st.PIDMode, st.Target = startFlags(c)
	defer func() {
		for _, f := range []*os.File{st.Dir, st.Log, st.OOM, st.Cgroup} {
			f.Close() // nil for a file that was not opened; Close accepts that
		}
	}()
	if err := r.openFiles(&st, c, pl.Cgroup); err != nil {
		return 0, nil, err
	}
	pid, id, err = r.runProgram(ctx, pl, p, helperLine{w, root}, specs.StateCreating,
		func(id *plan.Identity) error { return r.launching(c, id) }, func(spec, report *os.File) (int, error) {
			st.Spec, st.Status = spec, report
			var confined error
			var side sync.WaitGroup
			if pl.Waits {
				side.Go(func() { _, confined = r.confine(ctx, c, pl) })
			}
			pid, err := m.Start(st)
			side.Wait()
			if w != nil && errors.Is(err, unix.ESRCH) {
				err = errNotWaiting // it ended a moment ago
			}
			return pid, errors.Join(err, confined, r.reached(StepStartClone, pl.ID))
		}, func() { _ = m.Kill(pl.ID, unix.SIGKILL) })
	if errors.Is(err, errLimitTooLow) || errors.Is(err, monitor.ErrKilledEarly) && cgroups.OOMKilled(st.OOM) {
		err = errLimitTooLow
	}
	if err == nil && pl.Hooks != nil {
		hooks.Late(ctx, "poststart", pl.Hooks.Poststart,
			r.stateOf(&c.rec, pid, specs.StateRunning, pl.Config.Annotations))
	}
	return pid, id, errors.Join(err, r.reached(StepStartHelper, pl.ID))
}

// openFiles opens the files that the monitor gets with the request to start a container. The caller closes them, also
// after an error.
func (r *Runtime) openFiles(st *monitor.ContainerStart, c *container, cgroup string) (err error) {
	if st.Dir, err = os.Open(r.containerDir(st.ID)); err != nil {
		return err
	}
	if st.Log, err = c.openLog(); err != nil {
		return fmt.Errorf("opening the container's log: %w", err)
	}
	st.OOM = r.groups.OOMFile(cgroup)
	place := r.groups.Entry(cgroup)
	if st.Cgroup, err = place.Open(); err != nil {
		return fmt.Errorf("opening the container's cgroup: %w", err)
	}
	return nil
}

// helperLine is what a helper has besides its program, each nil for none.
type helperLine struct {
	w    *monitor.Waiting // the helper, if it waits already
	root *os.File         // the mount that the program takes
}

// runProgram calls start to run a program and waits for the result. If launching is not nil, it is
// called with the process ID before the helper continues. A helper that waits gets the program, and
// start no files.
func (r *Runtime) runProgram(ctx context.Context, pl *plan.Container, p *plan.Program, with helperLine,
	phase specs.ContainerState, launching func(*plan.Identity) error, start func(spec, report *os.File) (int, error),
	kill func()) (int, *plan.Identity, error) {
	if r.alter != nil {
		r.alter(p)
	}
	code, err := p.Encode()
	if err != nil {
		return 0, nil, err
	}
	var ours *net.UnixConn
	var spec, theirs *os.File
	if w := with.w; w != nil {
		ours = w.Line
		if err := w.Send(code, with.root); err != nil {
			return 0, nil, errors.Join(errNotWaiting, err)
		}
	} else {
		if spec, err = openfile.MemoryFile("spec", code); err != nil {
			return 0, nil, err
		}
		defer spec.Close()
		if ours, theirs, err = monitor.HelperLine(); err != nil {
			return 0, nil, err
		}
		if err := monitor.SendFile(ours, with.root); err != nil {
			theirs.Close()
			return 0, nil, errors.Join(err, ours.Close())
		}
	}
	defer ours.Close() // a helper that waits ends with it
	pid, err := start(spec, theirs)
	theirs.Close() // nil for a helper that waits; Close accepts that
	if err != nil {
		return pid, nil, err
	}
	stop := context.AfterFunc(ctx, kill)
	if p.Gated() {
		_, _ = ours.Write([]byte{0}) // fails for a helper that has ended, which is handled below
	}
	session := monitor.Session{Program: p, Launching: launching}
	if pl.Filter != nil && pl.Filter.Agent != nil {
		session.Listener = func(f *os.File) error {
			return handOver(pl.Filter.Agent, f, r.stateOf(&state.Container{ID: pl.ID}, pid, phase, nil), agentPatience)
		}
	}
	if pl.Hooks != nil && phase == specs.StateCreating {
		session.Waiting = func() error {
			st := r.stateOf(&state.Container{ID: pl.ID}, pid, phase, pl.Config.Annotations)
			return hooks.Create(ctx, pl.Hooks, st)
		}
	}
	err = session.Serve(ours)
	if session.PID != 0 {
		pid = session.PID
	}
	if !stop() && ctx.Err() != nil {
		return pid, nil, ctx.Err()
	}
	if err != nil {
		return pid, session.User, initFailed(err)
	}
	return pid, session.User, nil
}

func initFailed(err error) error {
	return fmt.Errorf("unable to start container process: error during container init: %w", err)
}

func startFlags(c *container) (flags, pidMode int, target string) {
	if c.config.Stdin {
		flags |= monitor.FlagStdin
	}
	if c.config.StdinOnce {
		flags |= monitor.FlagStdinOnce
	}
	if c.config.Tty {
		flags |= monitor.FlagTTY
	}
	o := c.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	switch o.GetPid() {
	case cri.NamespaceMode_CONTAINER:
		pidMode = monitor.PIDNew
	case cri.NamespaceMode_NODE:
		pidMode = monitor.PIDHost
	case cri.NamespaceMode_TARGET:
		pidMode, target = monitor.PIDTarget, o.GetTargetId()
	case cri.NamespaceMode_POD:
		pidMode = monitor.PIDPod
		if o == nil || c.sandbox.options().GetPid() != cri.NamespaceMode_POD {
			pidMode = monitor.PIDNew // no result was reported
		}
	}
	return flags, pidMode, target
}

// lateForks reports whether helpers can enter a PID namespace of the sandbox themselves, at their
// end.
func (r *Runtime) lateForks(s *sandbox) bool {
	m := s.line()
	return m != nil && m.Protocol() >= 2
}

// ownsPIDs reports whether the kernel kills everything in the container when its first process
// ends.
func (c *container) ownsPIDs() bool {
	_, mode, _ := startFlags(c)
	return mode == monitor.PIDNew
}

// stateOf is the state of a container as hooks and seccomp agents get it.
func (r *Runtime) stateOf(rec *state.Container, pid int, phase specs.ContainerState,
	annotations map[string]string) *specs.State {
	return &specs.State{Version: specs.Version, ID: rec.ID, Status: phase, Pid: pid, Bundle: r.secretDir(rec.ID),
		Annotations: annotations}
}
