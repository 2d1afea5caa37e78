package cgroups

import (
	"bytes"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/openfiles"
)

// OOMKilled reports whether the kernel killed a process of the cgroup for lack of memory, by its
// own limit or by one above; f is its OOM file and may be nil.
func OOMKilled(f *os.File) bool {
	b := make([]byte, 2048)
	n, _ := f.ReadAt(b, 0) // the file is short: always io.EOF, or the error of a nil file
	for line := range bytes.Lines(b[:max(n, 0)]) {
		if count, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			return !bytes.Equal(bytes.TrimSpace(count), []byte("0"))
		}
	}
	return false
}

// Usage is what a cgroup has used.
type Usage struct {
	at                             int64  // ns since 1970
	CPU                            uint64 // ns
	Memory, inactive, RSS, Swap    uint64 // bytes
	Limit                          uint64 // bytes; 0 without one
	Faults, MajorFaults            uint64
	PIDs                           uint64
	swapLimit                      uint64 // bytes
	cpuPressure, memPressure, ioPr *cri.PsiStats
}

// Measure reads the usage of a cgroup; what the host does not count is zero.
func (c *Hierarchies) Measure(group string) Usage {
	u := Usage{at: time.Now().UnixNano()}
	mem := c.Of("memory", group)
	stat := readStat(mem + "/memory.stat")
	if c.V2 {
		dir := c.Tree[0].Mount + group
		u.CPU = readStat(dir+"/cpu.stat").of("usage_usec") * 1000
		u.Memory, u.Limit = number(dir+"/memory.current"), number(dir+"/memory.max")
		u.addMemory(stat, true)
		u.Swap, u.swapLimit = number(dir+"/memory.swap.current"), number(dir+"/memory.swap.max")
		u.PIDs = number(dir + "/pids.current")
		u.cpuPressure, u.memPressure, u.ioPr = pressure(dir+"/cpu.pressure"), pressure(dir+"/memory.pressure"),
			pressure(dir+"/io.pressure")
		return u
	}
	u.CPU = number(c.Of("cpuacct", group) + "/cpuacct.usage")
	u.Memory, u.Limit = number(mem+"/memory.usage_in_bytes"), number(mem+"/memory.limit_in_bytes")
	if u.Limit >= math.MaxInt64&^4095 { // this is how v1 says that there is none
		u.Limit = 0
	}
	u.addMemory(stat, false)
	u.PIDs = number(c.Of("pids", group) + "/pids.current")
	return u
}

// addMemory adds the values of memory.stat.
func (u *Usage) addMemory(s stat, v2 bool) {
	if v2 {
		u.inactive, u.RSS = s.of("inactive_file"), s.of("anon")
		u.Faults, u.MajorFaults = s.of("pgfault"), s.of("pgmajfault")
		return
	}
	u.inactive, u.RSS, u.Swap = s.of("total_inactive_file"), s.of("total_rss"), s.of("total_swap")
	u.Faults, u.MajorFaults = s.of("total_pgfault"), s.of("total_pgmajfault")
}

// WorkingSet is the memory that the kernel cannot easily reclaim.
func (u *Usage) WorkingSet() uint64 {
	if u.Memory < u.inactive {
		return 0
	}
	return u.Memory - u.inactive
}

// number reads a file with one number; "max" and missing files are 0.
func number(path string) uint64 {
	text, err := openfiles.ReadOnce(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	return n
}

// stat is the text of a file with a name and a number in each line.
type stat string

// readStat reads such a file; a missing one is empty.
func readStat(path string) stat {
	text, err := openfiles.ReadOnce(path)
	if err != nil {
		return ""
	}
	return stat(text)
}

// of returns the number behind a name, 0 if there is none. Few of about forty names are needed: to search for them is
// cheaper than a map of all.
func (s stat) of(name string) uint64 {
	for rest := string(s); ; {
		i := strings.Index(rest, name)
		if i < 0 {
			return 0
		}
		value, whole := strings.CutPrefix(rest[i+len(name):], " ")
		if whole && (i == 0 || rest[i-1] == '\n') {
			value, _, _ = strings.Cut(value, "\n")
			n, _ := strconv.ParseUint(value, 10, 64)
			return n
		}
		rest = rest[i+1:]
	}
}

// pressure reads a file of pressure stall information; nil where there is none.
func pressure(path string) *cri.PsiStats {
	text, err := openfiles.ReadOnce(path)
	if err != nil {
		return nil
	}
	p := &cri.PsiStats{Full: &cri.PsiData{}, Some: &cri.PsiData{}}
	for line := range strings.SplitSeq(text, "\n") {
		f := strings.Fields(line)
		if len(f) != 5 {
			continue
		}
		d := p.Some
		if f[0] == "full" {
			d = p.Full
		}
		for _, kv := range f[1:] {
			k, v, _ := strings.Cut(kv, "=")
			x, err := strconv.ParseFloat(v, 64)
			if err != nil {
				continue
			}
			switch k {
			case "avg10":
				d.Avg10 = x
			case "avg60":
				d.Avg60 = x
			case "avg300":
				d.Avg300 = x
			case "total":
				d.Total = uint64(x)
			}
		}
	}
	return p
}

// CPUStats returns CRI's statistics of CPU.
func (u *Usage) CPUStats() *cri.CpuUsage {
	return &cri.CpuUsage{Timestamp: u.at, UsageCoreNanoSeconds: uint64Value(u.CPU), Psi: u.cpuPressure}
}

// MemoryStats returns CRI's statistics of memory.
func (u *Usage) MemoryStats() *cri.MemoryUsage {
	m := &cri.MemoryUsage{
		Timestamp: u.at, WorkingSetBytes: uint64Value(u.WorkingSet()), UsageBytes: uint64Value(u.Memory),
		RssBytes:   uint64Value(u.RSS),
		PageFaults: uint64Value(u.Faults), MajorPageFaults: uint64Value(u.MajorFaults), AvailableBytes: uint64Value(0),
		Psi: u.memPressure,
	}
	if u.Limit > u.WorkingSet() {
		m.AvailableBytes = uint64Value(u.Limit - u.WorkingSet())
	}
	return m
}

// SwapStats returns CRI's statistics of swap.
func (u *Usage) SwapStats() *cri.SwapUsage {
	return &cri.SwapUsage{Timestamp: u.at, SwapUsageBytes: uint64Value(u.Swap),
		SwapAvailableBytes: uint64Value(u.swapLimit - min(u.Swap, u.swapLimit))}
}

// IOStats returns CRI's statistics of I/O: its pressure.
func (u *Usage) IOStats() *cri.IoUsage { return &cri.IoUsage{Timestamp: u.at, Psi: u.ioPr} }

// ProcessStats returns CRI's statistics of processes.
func (u *Usage) ProcessStats() *cri.ProcessUsage {
	return &cri.ProcessUsage{Timestamp: u.at, ProcessCount: uint64Value(u.PIDs)}
}

func uint64Value(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }
