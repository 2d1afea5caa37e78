package object

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Reading is how much is left of what pods can use up.
type Reading struct {
	MemoryAvailable           int64   // bytes
	DiskAvailable, InodesFree float64 // share of the file system, 0–1
	PIDsAvailable             float64 // share of the kernel's limit, 0–1
}

// Hard thresholds under which the node counts as under pressure (L7.145), and how
// long a pressure lasts at least (L7.146).
const (
	minMemory   = 100 << 20
	minDisk     = 0.10
	minInodes   = 0.05
	minPIDs     = 0.01
	pressureFor = 5 * time.Minute
)

// ReadPressure takes a reading; dataDir names the file system that counts.
func ReadPressure(dataDir string) (Reading, error) {
	var r Reading
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return r, fmt.Errorf("read how much memory is available: %w", err)
	}
	if r.MemoryAvailable, err = memAvailable(meminfo); err != nil {
		return r, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dataDir, &fs); err != nil {
		return r, fmt.Errorf("read how much disk is available: %w", err)
	}
	r.DiskAvailable, r.InodesFree, r.PIDsAvailable = 1, 1, 1
	if fs.Blocks > 0 {
		r.DiskAvailable = float64(fs.Bavail) / float64(fs.Blocks)
	}
	if fs.Files > 0 { // some file systems count none
		r.InodesFree = float64(fs.Ffree) / float64(fs.Files)
	}
	var si unix.Sysinfo_t
	limit, err := strconv.ParseFloat(firstOf("/proc/sys/kernel/pid_max"), 64)
	if unix.Sysinfo(&si) == nil && err == nil && limit > 0 {
		r.PIDsAvailable = 1 - float64(si.Procs)/limit
	}
	return r, nil
}

// memAvailable finds MemAvailable in the text of /proc/meminfo.
func memAvailable(meminfo []byte) (int64, error) {
	sc := bufio.NewScanner(bytes.NewReader(meminfo))
	for sc.Scan() {
		rest, ok := strings.CutPrefix(sc.Text(), "MemAvailable:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read how much memory is available: %w", err)
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("read how much memory is available: the kernel does not say")
}

// pressure keeps the three pressure conditions; a condition stays for a while
// after the last reading that hit its threshold.
type pressure struct {
	hit map[corev1.NodeConditionType]time.Time
}

// conditions takes a reading in and says how the node is (L7.146).
func (p *pressure) conditions(r Reading, now time.Time) []corev1.NodeCondition {
	if p.hit == nil {
		p.hit = map[corev1.NodeConditionType]time.Time{}
	}
	var out []corev1.NodeCondition
	for _, c := range []struct {
		kind          corev1.NodeConditionType
		hit           bool
		good, bad     string
		goodMsg, badM string
	}{
		{corev1.NodeMemoryPressure, r.MemoryAvailable < minMemory, "KubeletHasSufficientMemory", "KubeletHasInsufficientMemory",
			"kubelet has sufficient memory available", "kubelet has insufficient memory available"},
		{corev1.NodeDiskPressure, r.DiskAvailable < minDisk || r.InodesFree < minInodes, "KubeletHasNoDiskPressure", "KubeletHasDiskPressure",
			"kubelet has no disk pressure", "kubelet has disk pressure"},
		{corev1.NodePIDPressure, r.PIDsAvailable < minPIDs, "KubeletHasSufficientPID", "KubeletHasInsufficientPID",
			"kubelet has sufficient PID available", "kubelet has insufficient PID available"},
	} {
		if c.hit {
			p.hit[c.kind] = now
		}
		cond := corev1.NodeCondition{Type: c.kind, Status: corev1.ConditionFalse, Reason: c.good, Message: c.goodMsg}
		if at, ok := p.hit[c.kind]; ok && now.Sub(at) < pressureFor {
			cond.Status, cond.Reason, cond.Message = corev1.ConditionTrue, c.bad, c.badM
		}
		out = append(out, cond)
	}
	return out
}
