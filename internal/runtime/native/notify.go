package native

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"carob/internal/base/openfile"
	"carob/internal/runtime/native/plan"
)

// agentPatience is how long a start waits for an agent that does not accept a listener.
const agentPatience = 10 * time.Second

// handOver passes a filter's listener to the agent and closes it. status is the container's:
// creating at a start, running for an exec.
func handOver(a *plan.SeccompAgent, listener *os.File, id, bundle string, pid int, status specs.ContainerState) error {
	defer listener.Close()
	state, err := json.Marshal(specs.ContainerProcessState{
		Version: specs.Version, Fds: []string{specs.SeccompFdName}, Pid: pid, Metadata: a.Metadata,
		State: specs.State{Version: specs.Version, ID: id, Status: status, Pid: pid, Bundle: bundle},
	})
	if err != nil {
		return fmt.Errorf("describing the container to the seccomp agent: %w", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("calling the seccomp agent: %w", err)
	}
	f := os.NewFile(uintptr(fd), "seccomp agent")
	defer f.Close()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: a.Path}); err != nil {
		return fmt.Errorf("calling the seccomp agent at %s: %w", a.Path, err)
	}
	c, err := openfile.UnixConn(f)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(agentPatience)); err != nil {
		return err
	}
	if _, _, err := c.WriteMsgUnix(state, unix.UnixRights(openfile.FD(listener)), nil); err != nil {
		return fmt.Errorf("handing the listener to the seccomp agent at %s: %w", a.Path, err)
	}
	return nil
}
