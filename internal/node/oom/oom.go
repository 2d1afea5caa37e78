// Package oom finds two kinds of records in the kernel's log: processes that were killed because the machine, not a
// single cgroup, was out of memory, and connections of this host that were dropped because the connection tracking
// table is full. The agent records them as events of the node (L10.76). The package must use only records that the
// kernel wrote.
//
// Contract: docs/spec/pod-lifecycle.md.
package oom

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/klog/v2"
)

// Victim is a process that was killed.
type Victim struct {
	Process string // as the kernel names it, 15 bytes at most; control characters are escaped
	PID     int
}

// maxRecord is the size of the longest record of the kernel's log.
const maxRecord = 8 << 10

// Open opens the kernel's log behind its newest record.
func Open() (io.ReadCloser, error) {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open the kernel's log: %w", err)
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		return nil, errors.Join(fmt.Errorf("skip the kernel's log: %w", err), f.Close())
	}
	return f, nil
}

// Watch calls tell for each victim, and full when connection tracking of the network namespace with this inode
// refused packets, until ctx ends or the log does. Each Read of log must return one record, as /dev/kmsg does;
// Watch closes it.
func Watch(ctx context.Context, log io.ReadCloser, netns uint64, report func(Victim), full func()) {
	stop := context.AfterFunc(ctx, func() { _ = log.Close() })
	defer func() {
		if stop() {
			_ = log.Close()
		}
	}()
	record := make([]byte, maxRecord)
	for {
		n, err := log.Read(record)
		switch {
		case errors.Is(err, syscall.EPIPE): // records were overwritten before they were read
			continue
		case err != nil:
			if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err,
					"Reading the kernel log ended; processes that the kernel kills are no longer reported")
			}
			return
		}
		if v, ok := parse(string(record[:n])); ok {
			report(v)
		}
		if conntrackFull(string(record[:n]), netns) {
			full()
		}
	}
}

// ofKernel reads a record "PRIORITY,SEQUENCE,TIME,FLAGS…;TEXT". What processes write into
// the log has a facility of its own (PRIORITY is 8 or more), which no process can choose.
func ofKernel(record string) (text string, ok bool) {
	head, text, _ := strings.Cut(record, ";")
	priority, _, _ := strings.Cut(head, ",")
	if p, err := strconv.Atoi(priority); err != nil || p < 0 || p > 7 {
		return "", false
	}
	text, _, _ = strings.Cut(text, "\n")
	return text, true
}

// conntrackFull reports whether a record says that connection tracking dropped a packet of a network namespace.
// Kernels that do not name it have one table for all.
func conntrackFull(record string, netns uint64) bool {
	text, ok := ofKernel(record)
	if !ok || !strings.HasPrefix(text, "nf_conntrack: ") {
		return false
	}
	_, rest, ok := strings.Cut(text, "table full")
	if !ok {
		return false
	}
	rest, named := strings.CutPrefix(rest, " in netns ")
	if !named {
		return true
	}
	inode, _, _ := strings.Cut(rest, ",")
	return inode == strconv.FormatUint(netns, 10)
}

// parse reads the record of a victim.
func parse(record string) (Victim, bool) {
	text, ok := ofKernel(record)
	if !ok {
		return Victim{}, false
	}
	if !strings.HasPrefix(text, "oom-kill:") || !strings.Contains(text, ",global_oom,") {
		return Victim{}, false // of one cgroup: the container's status shows it
	}
	// …,task=NAME,pid=N,uid=N: a name may hold anything but ends before the last of these.
	text, _, ok = cutLast(text, ",uid=")
	if !ok {
		return Victim{}, false
	}
	text, pid, ok := cutLast(text, ",pid=")
	n, err := strconv.Atoi(pid)
	if !ok || err != nil || n <= 0 {
		return Victim{}, false
	}
	_, name, ok := cutLast(text, ",task=")
	return Victim{Process: name, PID: n}, ok && name != ""
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
