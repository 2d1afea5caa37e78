package native

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// seccompAgent is who decides the calls that a profile leaves to SCMP_ACT_NOTIFY:
// a program of the host that listens at the profile's listenerPath (OCI runtime-spec,
// "containerProcessState").
type seccompAgent struct {
	path, metadata string
}

// agentPatience is how long a start waits for an agent that takes no listener.
const agentPatience = 10 * time.Second

// handOver gives the agent a filter's listener, which it closes. status is the
// container's: creating at a start, running for an exec.
func (a *seccompAgent) handOver(listener *os.File, id, bundle string, pid int, status specs.ContainerState) error {
	defer listener.Close()
	state, err := json.Marshal(specs.ContainerProcessState{
		Version: specs.Version, Fds: []string{specs.SeccompFdName}, Pid: pid, Metadata: a.metadata,
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
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: a.path}); err != nil {
		return fmt.Errorf("calling the seccomp agent at %s: %w", a.path, err)
	}
	c, err := unixConn(f)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(agentPatience)); err != nil {
		return err
	}
	if _, _, err := c.WriteMsgUnix(state, unix.UnixRights(rawFD(listener)), nil); err != nil {
		return fmt.Errorf("handing the listener to the seccomp agent at %s: %w", a.path, err)
	}
	return nil
}
