package summary

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"carob/internal/base/tasks"
)

// ticks is the number of clock ticks per second in the kernel's user interface, on every architecture.
const ticks = 100

// MeasureNode reads the CPU time, the memory and the processes of the machine; what can't be read is left out.
func MeasureNode(name string) Node {
	n := Node{NodeName: name, Memory: MeasureMemory()}
	now := time.Now()
	if text, err := os.ReadFile("/proc/stat"); err == nil {
		n.CPU, n.StartTime = processorTimes(text, now)
	}
	if n.CPU != nil {
		n.CPU.PSI = pressure("cpu")
	}
	return n
}

// measureRest reads what is not among the CPU and the memory of the machine, and on no disk.
func (n *Node) measureRest() {
	now := time.Now()
	if psi := pressure("io"); psi != nil {
		n.IO = &IO{Time: now, PSI: psi}
	}
	if text, err := os.ReadFile("/proc/self/net/dev"); err == nil {
		n.Network = interfaces(text, now)
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		n.Swap = machineSwap(text, now)
	}
	if c, err := tasks.Read(); err == nil {
		n.Rlimit = &Rlimit{Time: now, MaxPID: &c.Limit, CurProc: &c.Running}
	}
}

// pressure reads the machine's pressure stall information of a resource; nil where the kernel has none.
func pressure(resource string) *PSI {
	text, err := os.ReadFile("/proc/pressure/" + resource)
	if err != nil {
		return nil
	}
	return parsePressure(string(text))
}

// parsePressure reads a file of pressure stall information.
func parsePressure(text string) *PSI {
	p := &PSI{}
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(line, " ")
		var d PSIData
		if _, err := fmt.Sscanf(rest, "avg10=%g avg60=%g avg300=%g total=%d", &d.Avg10, &d.Avg60, &d.Avg300,
			&d.Total); err != nil {
			continue
		}
		switch kind {
		case "some":
			p.Some = d
		case "full":
			p.Full = d
		}
	}
	return p
}

// defaultInterface is the only one whose figures are those of the machine, as in kubelets (S12.48).
const defaultInterface = "eth0"

// interfaces reads the text of /proc/net/dev, without the ends of pods' networks.
func interfaces(text []byte, now time.Time) *Network {
	n := &Network{Time: now}
	for line := range strings.Lines(string(text)) {
		name, counts, ok := strings.Cut(line, ":")
		f := strings.Fields(counts)
		name = strings.TrimSpace(name)
		if !ok || len(f) < 16 || name == "lo" || strings.HasPrefix(name, "veth") || strings.HasPrefix(name, "docker") ||
			strings.HasPrefix(name, "nerdctl") {
			continue
		}
		i := Interface{Name: name}
		for at, to := range map[int]**uint64{0: &i.RxBytes, 2: &i.RxErrors, 8: &i.TxBytes, 10: &i.TxErrors} {
			if v, err := strconv.ParseUint(f[at], 10, 64); err == nil {
				*to = &v
			}
		}
		if name == defaultInterface {
			n.Interface = i
		}
		n.Interfaces = append(n.Interfaces, i)
	}
	return n
}

// processorTimes parses /proc/stat: the CPU time of all processors, and when the machine started.
func processorTimes(text []byte, now time.Time) (*CPU, *time.Time) {
	var cpu *CPU
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
			cpu = &CPU{Time: now, UsageCoreNanoSeconds: &busy}
		case len(f) == 2 && f[0] == "btime":
			if s, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				t := time.Unix(s, 0)
				boot = &t
			}
		}
	}
	return cpu, boot
}

// MeasureMemory reads the memory of the machine; nil if it is not known.
func MeasureMemory() *Memory {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil
	}
	m := machineMemory(text, time.Now())
	if m == nil {
		return nil
	}
	if text, err := os.ReadFile("/proc/vmstat"); err == nil {
		m.PageFaults, m.MajorPageFaults = named(text, "pgfault"), named(text, "pgmajfault")
	}
	m.PSI = pressure("memory")
	return m
}

// named is the number after a name, in a text with one of each in a line; nil if there is none.
func named(text []byte, name string) *uint64 {
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) < 2 || string(f[0]) != name {
			continue
		}
		if v, err := strconv.ParseUint(string(f[1]), 10, 64); err == nil {
			return &v
		}
	}
	return nil
}

// machineSwap reads the text of /proc/meminfo; nil when it has no swap.
func machineSwap(text []byte, now time.Time) *Swap {
	total, free := named(text, "SwapTotal:"), named(text, "SwapFree:")
	if total == nil || free == nil || *free > *total {
		return nil
	}
	available, used := *free<<10, (*total-*free)<<10
	return &Swap{Time: now, AvailableBytes: &available, UsageBytes: &used}
}

// machineMemory reads the text of /proc/meminfo; nil when it lacks something.
func machineMemory(text []byte, now time.Time) *Memory {
	kib := func(name string) uint64 {
		if v := named(text, name+":"); v != nil {
			return *v << 10
		}
		return 0
	}
	total, available := kib("MemTotal"), kib("MemAvailable")
	if total == 0 || available > total {
		return nil
	}
	usage, working, rss := total-kib("MemFree"), total-available, kib("AnonPages")
	return &Memory{Time: now, AvailableBytes: &available, UsageBytes: &usage, WorkingSetBytes: &working,
		RSSBytes: &rss}
}
