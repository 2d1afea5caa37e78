package eviction

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/base/openfile"
	"carob/internal/core/eviction"
)

const (
	// armEvery is how often the usage is computed anew at which the kernel notifies: what is available changes
	// also without the usage, for instance when files in the page cache are written.
	armEvery = 10 * time.Second
	// notifyGap is the minimum time between two notifications of the usage.
	notifyGap = time.Second
)

// stalls are the triggers for /proc/pressure/memory, the first that the kernel accepts is used: processes waited for
// memory for that long (us) within that time (us). The window of two seconds is for processes without
// CAP_SYS_RESOURCE. The kernel notifies once in a window at most.
var stalls = []string{"some 100000 1000000", "some 200000 2000000"}

// A Notifier causes a look at the node's memory when the kernel reports that it may be short, between the regular looks
// (S11.75). There are two sources: processes wait for memory (pressure stall information), and, with version 1 of
// cgroups, the usage reaches the point where a threshold is (as the kubelet does).
type Notifier struct {
	Rules eviction.Config
	Look  func() // called for each notification; must not block

	group    string // directory of the memory hierarchy, version 1; empty: there is none
	pressure string // file with pressure stall information
	stalls   []string
	memory   func() (eviction.Observation, error)
	every    time.Duration
	gap      time.Duration
}

// NewNotifier returns a Notifier for the whole machine; look must not block.
func NewNotifier(rules eviction.Config, look func()) *Notifier {
	n := &Notifier{Rules: rules, Look: look, pressure: "/proc/pressure/memory", stalls: stalls, memory: readMemory,
		every: armEvery, gap: notifyGap}
	if !cgroups.IsCgroup2UnifiedMode() {
		if at, err := cgroups.FindCgroupMountpoint("", "memory"); err == nil {
			n.group = at
		}
	}
	return n
}

func readMemory() (eviction.Observation, error) {
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return eviction.Observation{}, fmt.Errorf("read how much memory is available: %w", err)
	}
	return memoryOf(meminfo)
}

// Run waits for notifications until ctx ends. A source that does not exist or fails is logged; the regular looks go on.
func (n *Notifier) Run(ctx context.Context) {
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := n.followPressure(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("The kernel does not notify of processes that wait for memory", "err", err)
		}
	})
	if n.group != "" {
		wait.Go(func() {
			if err := n.followUsage(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Info("The kernel does not notify of the usage of memory", "err", err)
			}
		})
	}
	wait.Wait()
}

// followPressure calls Look each time that processes have waited for memory. It ends with an error, or with ctx.
func (n *Notifier) followPressure(ctx context.Context) error {
	fd, err := n.openTrigger()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	// Go's poller does not wait for EPOLLPRI, but for another poller that does.
	poller, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("wait for pressure: %w", os.NewSyscallError("epoll_create1", err))
	}
	err = errors.Join(unix.SetNonblock(poller, true),
		unix.EpollCtl(poller, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLPRI}))
	f := os.NewFile(uintptr(poller), n.pressure)
	defer context.AfterFunc(ctx, func() { _ = f.Close() })()
	if err != nil {
		return errors.Join(fmt.Errorf("wait for pressure: %w", err), f.Close())
	}
	if err := n.followPoller(f); ctx.Err() == nil {
		return errors.Join(fmt.Errorf("wait for pressure: %w", err), f.Close())
	}
	return nil
}

// followPoller calls Look each time that Go's poller finds the poller of the pressure ready, until it is closed or its
// file is gone. Go's poller has fetched the event then; the poller of the pressure does not have it any more.
func (n *Notifier) followPoller(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	began, gone := false, false
	err = conn.Read(func(poller uintptr) bool {
		var came [1]unix.EpollEvent
		count, err := unix.EpollWait(int(poller), came[:], 0)
		gone = err == nil && count > 0 && came[0].Events&unix.EPOLLERR != 0
		if !gone && (began || count > 0) {
			n.Look()
		}
		began = true // the first call is before the first wait
		return gone
	})
	if gone {
		return fmt.Errorf("%s is gone", f.Name())
	}
	return err
}

// openTrigger opens the file with pressure stall information, and sets when the kernel notifies.
func (n *Notifier) openTrigger() (int, error) {
	fd, err := unix.Open(n.pressure, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("wait for pressure: %w", &os.PathError{Op: "open", Path: n.pressure, Err: err})
	}
	for _, trigger := range n.stalls {
		if _, err = unix.Write(fd, append([]byte(trigger), 0)); err == nil {
			return fd, nil
		}
	}
	return -1, errors.Join(fmt.Errorf("wait for pressure: %w", &os.PathError{Op: "write", Path: n.pressure, Err: err}),
		unix.Close(fd))
}

// followUsage calls Look each time that the usage passes a threshold. It ends with an error, or with ctx.
func (n *Notifier) followUsage(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		passed, err := n.awaitUsage(ctx)
		if err != nil {
			return err
		}
		if passed && ctx.Err() == nil {
			n.Look()
		}
		timer.Reset(n.gap)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return nil
}

// awaitUsage waits until the usage passes the next threshold, for n.every at most; false: it has not.
func (n *Notifier) awaitUsage(ctx context.Context) (bool, error) {
	const name = "memory.usage_in_bytes"
	usage, err := os.Open(filepath.Join(n.group, name))
	if err != nil {
		return false, fmt.Errorf("wait for a usage of memory: %w", err)
	}
	defer func() { _ = usage.Close() }()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return false, fmt.Errorf("wait for a usage of memory: %w", os.NewSyscallError("eventfd", err))
	}
	event := os.NewFile(uintptr(fd), "usage of memory")
	defer func() { _ = event.Close() }()
	defer context.AfterFunc(ctx, func() { _ = event.Close() })()
	if err := event.SetReadDeadline(time.Now().Add(n.every)); err != nil {
		return false, fmt.Errorf("wait for a usage of memory: %w", err)
	}
	passed, err := n.arm(event, usage)
	if err != nil || passed {
		return passed, err
	}
	var count [8]byte
	_, err = event.Read(count[:])
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), ctx.Err() != nil:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("wait for a usage of memory: %w", err)
	}
	return binary.NativeEndian.Uint64(count[:]) > 0, nil
}

// arm has the kernel signal event when the usage passes the next threshold. passed: it has already. While no threshold
// lies ahead, event is not signalled.
func (n *Notifier) arm(event, usage *os.File) (passed bool, err error) {
	before, err := n.memory()
	if err != nil {
		return false, err
	}
	var text [24]byte
	size, err := usage.ReadAt(text[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the usage of memory: %w", err)
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(text[:size])), 10, 64)
	if err != nil {
		return false, fmt.Errorf("read the usage of memory: %w", err)
	}
	limit, ok := eviction.UsageLimit(n.Rules, before, used)
	if !ok {
		return false, nil
	}
	line := fmt.Sprintf("%d %d %d", openfile.FD(event), openfile.FD(usage), limit)
	if err := os.WriteFile(filepath.Join(n.group, "cgroup.event_control"), []byte(line), 0); err != nil {
		return false, fmt.Errorf("have the kernel notify of a usage of memory: %w", err)
	}
	after, err := n.memory() // the kernel notifies of what comes later
	return err == nil && eviction.Passed(n.Rules, before, after), err
}
