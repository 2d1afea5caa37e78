package node

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"carob/internal/node/stream"
)

const (
	// syncLoopMax is how long the agent may fail to manage pods before it counts as unhealthy (L8.27).
	syncLoopMax = 5 * time.Minute
	// checkTimeout is how long a check may take: a check that hangs has failed.
	checkTimeout = 2 * time.Second
)

var errSyncLoop = errors.New("sync Loop took longer than expected")

// syncLoop checks that the owners of pods make progress, and that the runtime responds.
func (p *parts) syncLoop() error {
	now := time.Now()
	if since := p.health.stalled(p.watcher, p.started, now); !since.IsZero() && now.Sub(since) > syncLoopMax {
		return fmt.Errorf("%w: the container runtime has not answered for too long", errSyncLoop)
	}
	if err := p.pods.Healthy(now, syncLoopMax); err != nil {
		return fmt.Errorf("%w: %w", errSyncLoop, err)
	}
	return nil
}

// checks are the checks of /healthz, with the kubelet's names.
func (p *parts) checks() []stream.Check {
	return []stream.Check{
		{Name: "ping", Check: func() error { return nil }},
		{Name: "log", Check: func() error { return logFlows(int(os.Stderr.Fd())) }},
		{Name: "syncloop", Check: inTime(p.syncLoop)},
	}
}

// inTime makes a check fail if it does not end within checkTimeout. A check that hangs is not stopped, and no second
// one is started meanwhile.
func inTime(check func() error) func() error {
	var hangs atomic.Bool
	return func() error {
		if hangs.Swap(true) {
			return fmt.Errorf("no answer within %v", checkTimeout)
		}
		done := make(chan error, 1)
		go func() {
			err := check()
			hangs.Store(false)
			done <- err
		}()
		timer := time.NewTimer(checkTimeout)
		defer timer.Stop()
		select {
		case err := <-done:
			return err
		case <-timer.C:
			return fmt.Errorf("no answer within %v", checkTimeout)
		}
	}
}

// logFlows fails if nothing reads the log written to fd, for example if fd is a full pipe: then everything that logs
// blocks.
func logFlows(fd int) error {
	polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(polled, 0)
	switch {
	case err != nil && !errors.Is(err, unix.EINTR):
		return fmt.Errorf("inspect the log: %w", err)
	case err == nil && n == 0:
		return errors.New("the log's pipe is full, because its reader is slow or gone")
	}
	return nil
}
