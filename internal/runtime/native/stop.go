package native

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moby/sys/signal"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StopContainer sends the stop signal once, gives the process the timeout and
// then kills it. Each call has its own timeout: a later, shorter one takes
// effect at once. A cancelled context ends the wait and kills nobody.
func (r *Runtime) StopContainer(ctx context.Context, req *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	c, err := r.container(req.GetContainerId())
	if status.Code(err) == codes.NotFound {
		return &cri.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.stop(ctx, c, time.Duration(req.GetTimeout())*time.Second); err != nil {
		return nil, coded(fmt.Errorf("failed to stop container %q: %w", c.rec.ID, err))
	}
	return &cri.StopContainerResponse{}, nil
}

func (r *Runtime) stop(ctx context.Context, c *container, grace time.Duration) error {
	m := c.sandbox.line()
	if !c.running() || m == nil {
		return nil
	}
	if grace > 0 {
		c.mu.Lock()
		first := !c.asked
		c.asked = true
		c.mu.Unlock()
		if first {
			if err := m.kill(c.rec.ID, c.stopSignal()); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, errMonitorGone) {
				return err
			}
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
	}
	if err := m.kill(c.rec.ID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, errMonitorGone) {
		return err
	}
	if !c.ownsPIDs() {
		r.groups.killAll(c.rec.Cgroup)
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of a killed process: %w", ctx.Err())
	case <-time.After(2 * time.Minute): // in the kernel's hands: a dead disk or NFS server
		return status.Error(codes.DeadlineExceeded, "the process does not end although it was killed")
	}
}

// stopSignal is the container's: CRI's wins over the image's, SIGTERM is the default.
func (c *container) stopSignal() unix.Signal {
	if s := c.config.GetStopSignal(); s != cri.Signal_SIGNAL_RUNTIME_DEFAULT {
		if sig, err := parseSignal(strings.TrimPrefix(s.String(), "SIGNAL_")); err == nil {
			return sig
		}
	}
	if sig, err := parseSignal(c.rec.Image.Config.StopSignal); err == nil {
		return sig
	}
	return unix.SIGTERM
}

// parseSignal reads 15, TERM, SIGTERM, SIGRTMIN+3 and CRI's SIGRTMINPLUS3.
func parseSignal(s string) (unix.Signal, error) {
	s = strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(strings.ToUpper(s))
	sig, err := signal.ParseSignal(s)
	if err != nil || sig < 1 || sig > 64 {
		return 0, fmt.Errorf("%q is not a signal", s)
	}
	return sig, nil
}
