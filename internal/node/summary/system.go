package summary

import (
	"os"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// OwnProcess are the figures of this process as a part of the system. The process may share its cgroup with others, so
// that they are not those of a cgroup.
func OwnProcess(name string, started time.Time) Container {
	c := Container{Name: name, StartTime: started}
	now := time.Now()
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return c
	}
	busy := uint64(u.Utime.Nano() + u.Stime.Nano())
	c.CPU = &CPU{Time: now, UsageCoreNanoSeconds: &busy}
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return c
	}
	c.Memory, c.Swap = processMemory(text, now)
	if c.Memory != nil {
		minor, major := uint64(u.Minflt+u.Majflt), uint64(u.Majflt)
		c.Memory.PageFaults, c.Memory.MajorPageFaults = &minor, &major
	}
	return c
}

// processMemory reads the text of /proc/PID/status.
func processMemory(text []byte, now time.Time) (*Memory, *Swap) {
	kib := func(name string) *uint64 {
		v := named(text, name+":")
		if v == nil {
			return nil
		}
		bytes := *v << 10
		return &bytes
	}
	resident := kib("VmRSS")
	if resident == nil {
		return nil, nil
	}
	m := &Memory{Time: now, UsageBytes: resident, WorkingSetBytes: resident, RSSBytes: kib("RssAnon")}
	if used := kib("VmSwap"); used != nil {
		return m, &Swap{Time: now, UsageBytes: used}
	}
	return m, nil
}

// unlimited is the least limit of memory that is none: version 1 of cgroups has the largest number of whole pages.
const unlimited = 1 << 62

// Cgroup are the figures of a cgroup as a part of the system.
func Cgroup(name string, st *cgroups.Stats, now time.Time) Container {
	busy := st.CpuStats.CpuUsage.TotalUsage
	mem := &st.MemoryStats
	usage, set := mem.Usage.Usage, mem.Usage.Usage
	first := func(names ...string) *uint64 {
		for _, n := range names {
			if v, ok := mem.Stats[n]; ok {
				return &v
			}
		}
		return nil
	}
	if inactive := first("total_inactive_file", "inactive_file"); inactive != nil {
		set -= min(set, *inactive)
	}
	c := Container{Name: name, CPU: &CPU{Time: now, UsageCoreNanoSeconds: &busy, PSI: psiOfCgroup(st.CpuStats.PSI)},
		Memory: &Memory{Time: now, UsageBytes: &usage, WorkingSetBytes: &set, RSSBytes: first("total_rss", "anon"),
			PageFaults: first("total_pgfault", "pgfault"), MajorPageFaults: first("total_pgmajfault", "pgmajfault"),
			PSI: psiOfCgroup(mem.PSI)}}
	if limit := mem.Usage.Limit; limit > 0 && limit < unlimited {
		available := limit - min(set, limit)
		c.Memory.AvailableBytes = &available
	}
	if psi := psiOfCgroup(st.BlkioStats.PSI); psi != nil {
		c.IO = &IO{Time: now, PSI: psi}
	}
	swap := mem.SwapOnlyUsage.Usage
	c.Swap = &Swap{Time: now, UsageBytes: &swap}
	return c
}

func psiOfCgroup(p *cgroups.PSIStats) *PSI {
	if p == nil {
		return nil
	}
	of := func(d cgroups.PSIData) PSIData {
		return PSIData{Total: d.Total, Avg10: d.Avg10, Avg60: d.Avg60, Avg300: d.Avg300}
	}
	return &PSI{Full: of(p.Full), Some: of(p.Some)}
}
