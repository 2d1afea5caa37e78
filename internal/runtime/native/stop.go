package native

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/signal"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/seconds"
	"carob/internal/runtime/native/monitor"
)

// StopContainer sends the stop signal once, waits for the timeout, and then kills the process. Each
// call has its own timeout: a later, shorter one takes effect at once. A cancelled context ends the
// wait without a kill.
func (r *Runtime) StopContainer(ctx context.Context, req *cri.StopContainerRequest) (*cri.StopContainerResponse,
	error) {
	c, err := r.container(req.GetContainerId())
	if status.Code(err) == codes.NotFound {
		return &cri.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.stop(ctx, c, seconds.Duration(req.GetTimeout())); err != nil {
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
		ended, err := c.requestStop(ctx, m, grace)
		if ended || err != nil {
			return err
		}
	}
	if err := m.Kill(c.rec.ID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) &&
		!errors.Is(err, monitor.ErrGone) {
		return err
	}
	r.groups.Thaw(c.rec.Cgroup) // as runc does: frozen processes do not end
	if !c.ownsPIDs() {
		r.groups.KillAll(c.rec.Cgroup)
	}
	if err := r.reached(StepStopKill, c.rec.ID); err != nil {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of a killed process: %w", ctx.Err())
	case <-time.After(2 * time.Minute): // in the kernel: a dead disk or NFS server
		return status.Error(codes.DeadlineExceeded, "the process does not end although it was killed")
	}
}

// requestStop sends the stop signal and waits until the process ends, for at most the grace period.
// The kernel drops a signal that the first process of a PID namespace does not handle. A process
// started a moment ago may be about to install its handler: it gets the signal as soon as it has.
func (c *container) requestStop(ctx context.Context, m *monitor.Monitor, grace time.Duration) (ended bool, _ error) {
	late := time.NewTimer(grace)
	defer late.Stop()
	checks := 0
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		checks++
		delivered, err := c.sendStop(m, checks)
		if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, monitor.ErrGone) {
			return false, err
		}
		var again <-chan time.Time
		if !delivered {
			again = time.After(wait)
		}
		select {
		case <-c.done:
			return true, nil
		case <-ctx.Done():
			return false, ctx.Err()
		case <-late.C:
			return false, nil
		case <-again:
		}
	}
}

// unseenCheck is the number of the check, half a second after the first, from which the signal is
// sent even if nothing shows that the process handles it.
const unseenCheck = 9

// sendStop sends the stop signal once; it returns false while the process would not get it. A
// blocked signal waits for its process, but every fork blocks signals for a moment: a blocked
// signal counts from the third check on.
//
// No lock is held while the monitor, which may hang, has the signal: lists of all containers take it.
func (c *container) sendStop(m *monitor.Monitor, checks int) (delivered bool, _ error) {
	c.mu.Lock()
	sig, pid, sent := c.stopSignal(), c.rec.Pid, c.stopSent
	c.mu.Unlock()
	if sent {
		return true, nil
	}
	if c.ownsPIDs() && sig != unix.SIGKILL && sig != unix.SIGSTOP {
		caught, blocked := dispositions(pid)
		if bit := uint64(1) << (sig - 1); caught&bit == 0 && (blocked&bit == 0 || checks < 3) && !awaitsSignals(pid) {
			if checks == unseenCheck { // it may handle signals in a way that cannot be seen
				return false, m.Kill(c.rec.ID, sig)
			}
			return false, nil
		}
	}
	c.mu.Lock()
	sent, c.stopSent = c.stopSent, true
	c.mu.Unlock()
	if sent { // by another call
		return true, nil
	}
	return true, m.Kill(c.rec.ID, sig)
}

// awaitsSignals reports whether a process is in sigwait or the like, as init programs are: the
// kernel then shows its signals as neither caught nor blocked.
func awaitsSignals(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	if err != nil {
		return true // not known: an early signal is better than none
	}
	number, _, _ := strings.Cut(string(b), " ")
	return number == strconv.Itoa(unix.SYS_RT_SIGTIMEDWAIT)
}

// dispositions returns the signals that a process catches and blocks, bit 0 for signal 1; all if
// they are not known.
func dispositions(pid int) (caught, blocked uint64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return math.MaxUint64, math.MaxUint64
	}
	for line := range strings.Lines(string(b)) {
		name, mask, _ := strings.Cut(line, ":")
		switch name {
		case "SigCgt":
			caught, err = strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
		case "SigBlk":
			blocked, err = strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
		}
		if err != nil {
			return math.MaxUint64, math.MaxUint64
		}
	}
	return caught, blocked
}

// stopSignal returns the container's stop signal: CRI's before the image's, SIGTERM by default.
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

// signalOf returns CRI's name of a signal.
func signalOf(sig unix.Signal) cri.Signal {
	name := unix.SignalName(sig)
	switch n := int(sig); {
	case n == 34:
		name = "SIGRTMIN"
	case n > 34 && n <= 49:
		name = fmt.Sprintf("SIGRTMINPLUS%d", n-34)
	case n > 49 && n < 64:
		name = fmt.Sprintf("SIGRTMAXMINUS%d", 64-n)
	case n == 64:
		name = "SIGRTMAX"
	}
	return cri.Signal(cri.Signal_value["SIGNAL_"+name])
}

// parseSignal parses 15, TERM, SIGTERM, SIGRTMIN+3, and CRI's SIGRTMINPLUS3.
func parseSignal(s string) (unix.Signal, error) {
	s = strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(strings.ToUpper(s))
	sig, err := signal.ParseSignal(s)
	if err != nil || sig < 1 || sig > 64 {
		return 0, fmt.Errorf("%q is not a signal", s)
	}
	return sig, nil
}
