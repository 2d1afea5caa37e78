package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func (r *root) downCommand() *cobra.Command {
	var (
		pods    bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster; containers keep running unless --pods is set",
		Long: `Stop the cluster of a data directory. Containers keep running, and the next
'carob up' takes them over. With --pods, all pods end as well, and carob removes
everything from the host except the data directory.`,
		Example: `  # Stop the cluster and keep the containers running
  carob down

  # Stop the cluster and all pods
  carob down --pods`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, owner, running, err := r.runningInstance()
			if err != nil {
				return err
			}
			if running {
				if err := stopProcess(cmd.Context(), owner.PID, timeout); err != nil {
					return fmt.Errorf("stop carob (pid %d): %w", owner.PID, err)
				}
				fmt.Fprintf(r.out, "carob stopped (pid %d)\n", owner.PID)
			} else {
				fmt.Fprintf(r.out, "carob is not running on %s\n", in.DataDir)
			}
			if !pods {
				return nil
			}
			if _, err := os.Stat(in.DataDir); errors.Is(err, fs.ErrNotExist) {
				fmt.Fprintf(r.out, "%s does not exist: no pods were ended\n", in.DataDir)
				return nil
			}
			if err := r.engine.RemovePods(cmd.Context(), in); err != nil {
				return fmt.Errorf("end pods: %w", err)
			}
			fmt.Fprintln(r.out, "all pods ended")
			return nil
		},
	}
	cmd.Flags().BoolVar(&pods, "pods", false, "also end all pods and remove everything they left on the host")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait before carob is killed")
	return cmd
}

// stopProcess sends SIGTERM to a process, waits, and kills it at the time limit.
func stopProcess(ctx context.Context, pid int, timeout time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process: %w", err)
	}
	defer unix.Close(fd)
	for _, step := range []struct {
		sig  unix.Signal
		wait time.Duration
	}{{unix.SIGTERM, timeout}, {unix.SIGKILL, 10 * time.Second}} {
		if err := unix.PidfdSendSignal(fd, step.sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("send signal: %w", err)
		}
		ended, err := waitPidfd(ctx, fd, step.wait)
		if ended || err != nil {
			return err
		}
	}
	return errors.New("the process does not end")
}

func waitPidfd(ctx context.Context, fd int, wait time.Duration) (bool, error) {
	deadline := time.Now().Add(wait)
	for {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		left := time.Until(deadline)
		if left <= 0 {
			return false, nil
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}},
			int(min(left, 200*time.Millisecond).Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("wait for process: %w", err)
		}
		if n > 0 {
			return true, nil
		}
	}
}
