package native

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/plan"
	"carob/internal/runtime/native/stdio"
)

// Streams is the interface that a streaming server calls (k8s.io/cri-streaming's Runtime).
type Streams struct{ r *Runtime }

// Exec returns the URL of an exec.
func (r *Runtime) Exec(ctx context.Context, req *cri.ExecRequest) (*cri.ExecResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if !c.running() {
		return nil, status.Errorf(codes.FailedPrecondition, "container %q is not running", c.rec.ID)
	}
	if r.streaming == nil {
		return nil, status.Error(codes.Unimplemented, "no streaming server is set up")
	}
	return r.streaming.GetExec(req)
}

// Attach returns the URL of an attach.
func (r *Runtime) Attach(ctx context.Context, req *cri.AttachRequest) (*cri.AttachResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if !c.running() {
		return nil, status.Errorf(codes.FailedPrecondition, "container %q is not running", c.rec.ID)
	}
	if r.streaming == nil {
		return nil, status.Error(codes.Unimplemented, "no streaming server is set up")
	}
	return r.streaming.GetAttach(req)
}

// PortForward returns the URL of a port-forward.
func (r *Runtime) PortForward(ctx context.Context, req *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	s, err := r.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if s.line() == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "sandbox %q is not ready", s.rec.ID)
	}
	if r.streaming == nil {
		return nil, status.Error(codes.Unimplemented, "no streaming server is set up")
	}
	return r.streaming.GetPortForward(req)
}

// Exec runs a command with the given streams; a non-zero exit is a k8s.io/utils/exec.CodeExitError.
func (s *Streams) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errw io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize) error {
	c, err := s.r.container(id)
	if err != nil {
		return err
	}
	caller := stdio.Caller{In: in, TTY: tty, Resize: resize, Client: true}
	if out != nil {
		caller.Out = out
	} else if tty {
		caller.Out = io.Discard
	}
	if errw != nil && !tty {
		caller.Err = errw
	}
	code, err := s.r.exec(ctx, c, execCall{cmd: cmd, caller: caller})
	if err != nil {
		if e, ok := errors.AsType[*plan.ExecError](err); ok {
			// The client gets an exit code without its reason, so the reason is printed, as a shell
			// does.
			switch { // a disconnected client needs no reason
			case caller.Err != nil:
				_, _ = fmt.Fprintln(caller.Err, e)
			case tty:
				_, _ = fmt.Fprintf(caller.Out, "%v\r\n", e)
			}
			return utilexec.CodeExitError{Err: fmt.Errorf("failed to exec in container: %w", err),
				Code: int(e.ExitCode())}
		}
		return err
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: int(code)}
	}
	return nil
}

// LogShown is called when a client is shown the whole log of the container: the first client that
// attaches need not get the same output again. Later output, and an unfinished last line, are still
// held. It waits for the monitor as long as ctx lasts.
func (r *Runtime) LogShown(ctx context.Context, id string) error {
	c, err := r.container(id)
	if err != nil {
		return err
	}
	m := c.sandbox.line()
	if m == nil || !c.config.GetStdin() && !c.config.GetTty() {
		return nil // nothing is held
	}
	if err := m.Shown(ctx, c.rec.ID); err != nil {
		return coded(fmt.Errorf("dropping the output held of container %q: %w", c.rec.ID, err))
	}
	return nil
}

// AttachContainer implements runtime.Attacher.
func (r *Runtime) AttachContainer(
	ctx context.Context, id string, in io.Reader, out, errw io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	return r.Streams().Attach(ctx, id, in, out, errw, tty, resize)
}

// mostAttached is how many clients may be attached to the containers of a pod at once: each takes a descriptor of its
// monitor, which needs others to start processes and to be found by the next carob.
const mostAttached = 100

// Attach connects streams to a running container until it exits, the client disconnects, or ctx
// ends; also until the client's input ends if that does not end the container's, as kubectl run
// --leave-stdin-open expects it. The first client of an interactive container also gets earlier
// output that LogShown did not cover, if there was little of it and it is recent, even if the
// container has exited.
func (s *Streams) Attach(ctx context.Context, id string, in io.Reader, out, errw io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize) error {
	c, err := s.r.container(id)
	if err != nil {
		return err
	}
	defer c.sandbox.attached.Add(-1)
	if c.sandbox.attached.Add(1) > mostAttached {
		return status.Errorf(codes.ResourceExhausted, "too many clients are attached to containers of the pod: %d",
			mostAttached)
	}
	// The monitor knows better whether it runs, and holds the output of a container that has exited
	// for some time.
	conn, err := monitor.DialConn(s.r.runDir(c.rec.SandboxID))
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "container %q is not running: %v", c.rec.ID, err)
	}
	defer conn.Close()
	if err := monitor.Attach(ctx, conn, c.rec.ID, in, out, errw, resize); errors.Is(err, unix.ESRCH) {
		return status.Errorf(codes.FailedPrecondition, "container %q is not running", c.rec.ID)
	} else if err != nil && ctx.Err() == nil {
		return fmt.Errorf("attaching to container %q: %w", c.rec.ID, err)
	}
	return ctx.Err()
}

// PortForward connects a stream to a port on the pod's loopback address.
func (s *Streams) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	sb, err := s.r.sandbox(id)
	if err != nil {
		return err
	}
	if sb.line() == nil {
		return status.Errorf(codes.FailedPrecondition, "sandbox %q is not ready", sb.rec.ID)
	}
	return s.r.forwards.Serve(ctx, sb.rec.ID, sb.rec.NetNS, port, stream)
}
