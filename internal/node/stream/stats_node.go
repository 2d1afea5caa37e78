package stream

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// nodeStats are the statistics of the whole machine.
type nodeStats struct {
	NodeName  string       `json:"nodeName"`
	StartTime *time.Time   `json:"startTime,omitempty"` // of the machine
	CPU       *cpuStats    `json:"cpu,omitempty"`
	Memory    *memoryStats `json:"memory,omitempty"`
	Fs        *fsStats     `json:"fs,omitempty"`
	Rlimit    *rlimitStats `json:"rlimit,omitempty"`
}

type rlimitStats struct {
	Time    time.Time `json:"time"`
	MaxPID  *int64    `json:"maxpid,omitempty"`
	CurProc *int64    `json:"curproc,omitempty"`
}

// ticks is the number of clock ticks per second in the kernel's user interface, on every architecture.
const ticks = 100

// measureNode reads the machine; what can't be read is left out. root is on the
// file system that pods use.
func measureNode(name, root string) nodeStats {
	n := nodeStats{NodeName: name}
	if text, err := os.ReadFile("/proc/stat"); err == nil {
		n.CPU, n.StartTime = processorTimes(text, time.Now())
	}
	n.Memory = measureMemory()
	var fs unix.Statfs_t
	if root != "" && unix.Statfs(root, &fs) == nil {
		size := uint64(fs.Bsize)
		available, capacity, used, inodes := fs.Bavail*size, fs.Blocks*size, (fs.Blocks-fs.Bfree)*size,
			fs.Files-fs.Ffree
		n.Fs = &fsStats{
			Time: time.Now(), AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used,
			InodesFree: &fs.Ffree, Inodes: &fs.Files, InodesUsed: &inodes,
		}
	}
	var si unix.Sysinfo_t
	if text, err := os.ReadFile("/proc/sys/kernel/pid_max"); err == nil && unix.Sysinfo(&si) == nil {
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			processes := int64(si.Procs)
			n.Rlimit = &rlimitStats{Time: time.Now(), MaxPID: &limit, CurProc: &processes}
		}
	}
	return n
}

// processorTimes parses /proc/stat: the CPU time of all processors, and when the machine started.
func processorTimes(text []byte, now time.Time) (*cpuStats, *time.Time) {
	var cpu *cpuStats
	var boot *time.Time
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		switch {
		case len(f) > 7 && f[0] == "cpu":
			busy := uint64(0)
			for i, v := range f[1:min(len(f), 9)] { // guests are counted among the others
				n, err := strconv.ParseUint(v, 10, 64)
				if err != nil {
					return nil, nil
				}
				if i != 3 && i != 4 { // idle, waiting for I/O
					busy += n
				}
			}
			busy *= uint64(time.Second) / ticks
			cpu = &cpuStats{Time: now, UsageCoreNanoSeconds: &busy}
		case len(f) == 2 && f[0] == "btime":
			if s, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				t := time.Unix(s, 0)
				boot = &t
			}
		}
	}
	return cpu, boot
}

// measureMemory reads the memory of the machine; nil if it is not known.
func measureMemory() *memoryStats {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil
	}
	return machineMemory(text, time.Now())
}

// machineMemory reads the text of /proc/meminfo; nil when it lacks something.
func machineMemory(text []byte, now time.Time) *memoryStats {
	kib := map[string]uint64{}
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		var name string
		var n uint64
		if _, err := fmt.Sscanf(sc.Text(), "%s %d", &name, &n); err == nil {
			kib[strings.TrimSuffix(name, ":")] = n << 10
		}
	}
	total, available := kib["MemTotal"], kib["MemAvailable"]
	if total == 0 || available > total {
		return nil
	}
	usage, working, rss := total-kib["MemFree"], total-available, kib["AnonPages"]
	return &memoryStats{Time: now, AvailableBytes: &available, UsageBytes: &usage, WorkingSetBytes: &working,
		RSSBytes: &rss}
}
