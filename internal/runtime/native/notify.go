package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"carob/internal/base/openfile"
	"carob/internal/runtime/native/plan"
)

// agentPatience is how long a start waits for an agent that accepts no listener.
const agentPatience = 10 * time.Second

// handOver passes a filter's listener to the agent and closes it. state is the container's: creating at a start,
// running for an exec.
func handOver(a *plan.SeccompAgent, listener *os.File, state *specs.State, patience time.Duration) error {
	defer listener.Close()
	text, err := json.Marshal(specs.ContainerProcessState{
		Version: specs.Version, Fds: []string{specs.SeccompFdName}, Pid: state.Pid, Metadata: a.Metadata, State: *state,
	})
	if err != nil {
		return fmt.Errorf("describing the container to the seccomp agent: %w", err)
	}
	until := time.Now().Add(patience)
	f, err := callAgent(a.Path, until)
	if err != nil {
		return fmt.Errorf("calling the seccomp agent at %s: %w", a.Path, err)
	}
	defer f.Close()
	c, err := openfile.UnixConn(f)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(until); err != nil {
		return err
	}
	if _, _, err := c.WriteMsgUnix(text, unix.UnixRights(openfile.FD(listener)), nil); err != nil {
		return fmt.Errorf("handing the listener to the seccomp agent at %s: %w", a.Path, err)
	}
	return nil
}

// callAgent connects to a socket. While an agent has too many connections that it has not accepted, the kernel waits.
func callAgent(path string, until time.Time) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "seccomp agent")
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		// Zero would be no limit.
		limit := unix.NsecToTimeval(max(time.Until(until), time.Millisecond).Nanoseconds())
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		}
	}
	if errors.Is(err, unix.EAGAIN) {
		err = fmt.Errorf("it accepts no connection: %w", os.ErrDeadlineExceeded)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
