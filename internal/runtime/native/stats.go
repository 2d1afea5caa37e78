package native

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// usage is what a cgroup has used.
type usage struct {
	at                             int64
	cpu                            uint64 // ns
	memory, inactive, rss, swap    uint64 // bytes
	limit                          uint64 // bytes; 0 without one
	faults, majorFaults            uint64
	pids                           uint64
	swapLimit                      uint64
	cpuPressure, memPressure, ioPr *cri.PsiStats
}

// measure reads a cgroup; what the host does not count stays zero.
func (c *cgroups) measure(group string) usage {
	u := usage{at: time.Now().UnixNano()}
	mem := c.of("memory", group)
	stat := fields(mem + "/memory.stat")
	if c.v2 {
		dir := c.tree[0].mount + group
		u.cpu = fields(dir + "/cpu.stat")["usage_usec"] * 1000
		u.memory, u.limit = number(dir+"/memory.current"), number(dir+"/memory.max")
		u.inactive, u.rss = stat["inactive_file"], stat["anon"]
		u.swap, u.swapLimit = number(dir+"/memory.swap.current"), number(dir+"/memory.swap.max")
		u.faults, u.majorFaults = stat["pgfault"], stat["pgmajfault"]
		u.pids = number(dir + "/pids.current")
		u.cpuPressure, u.memPressure, u.ioPr = pressure(dir+"/cpu.pressure"), pressure(dir+"/memory.pressure"), pressure(dir+"/io.pressure")
		return u
	}
	u.cpu = number(c.of("cpuacct", group) + "/cpuacct.usage")
	u.memory, u.limit = number(mem+"/memory.usage_in_bytes"), number(mem+"/memory.limit_in_bytes")
	if u.limit >= math.MaxInt64&^4095 { // how v1 says that there is none
		u.limit = 0
	}
	u.inactive, u.rss, u.swap = stat["total_inactive_file"], stat["total_rss"], stat["total_swap"]
	u.faults, u.majorFaults = stat["total_pgfault"], stat["total_pgmajfault"]
	u.pids = number(c.of("pids", group) + "/pids.current")
	return u
}

// workingSet is what can't be taken back without pain.
func (u *usage) workingSet() uint64 {
	if u.memory < u.inactive {
		return 0
	}
	return u.memory - u.inactive
}

// number reads a file with one number; "max" and what is missing are 0.
func number(path string) uint64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n
}

// fields reads a file of names and numbers.
func fields(path string) map[string]uint64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	m := map[string]uint64{}
	for line := range strings.SplitSeq(string(b), "\n") {
		name, value, ok := strings.Cut(line, " ")
		if n, err := strconv.ParseUint(value, 10, 64); ok && err == nil {
			m[name] = n
		}
	}
	return m
}

// pressure reads a file of pressure stall information; nil where there is none.
func pressure(path string) *cri.PsiStats {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	p := &cri.PsiStats{Full: &cri.PsiData{}, Some: &cri.PsiData{}}
	for line := range strings.SplitSeq(string(b), "\n") {
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

func value(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }

func (u *usage) cpuStats() *cri.CpuUsage {
	return &cri.CpuUsage{Timestamp: u.at, UsageCoreNanoSeconds: value(u.cpu), Psi: u.cpuPressure}
}

func (u *usage) memoryStats() *cri.MemoryUsage {
	m := &cri.MemoryUsage{
		Timestamp: u.at, WorkingSetBytes: value(u.workingSet()), UsageBytes: value(u.memory), RssBytes: value(u.rss),
		PageFaults: value(u.faults), MajorPageFaults: value(u.majorFaults), AvailableBytes: value(0), Psi: u.memPressure,
	}
	if u.limit > u.workingSet() {
		m.AvailableBytes = value(u.limit - u.workingSet())
	}
	return m
}

// statsOf measures a container that runs.
func (r *Runtime) statsOf(ctx context.Context, c *container) *cri.ContainerStats {
	rec := c.record()
	st := &cri.ContainerStats{Attributes: &cri.ContainerAttributes{
		Id: rec.ID, Metadata: c.config.Metadata, Labels: c.config.Labels, Annotations: c.config.Annotations,
	}}
	if c.running() {
		u := r.groups.measure(rec.Cgroup)
		st.Cpu, st.Memory = u.cpuStats(), u.memoryStats()
		st.Swap = &cri.SwapUsage{Timestamp: u.at, SwapUsageBytes: value(u.swap), SwapAvailableBytes: value(u.swapLimit - min(u.swap, u.swapLimit))}
		st.Io = &cri.IoUsage{Timestamp: u.at, Psi: u.ioPr}
	}
	if d, err := r.cfg.Images.Usage(ctx, rec.ID); err == nil {
		own := r.podFiles(c)
		d.Bytes, d.Inodes = d.Bytes+own.Bytes, d.Inodes+own.Inodes
		st.WritableLayer = &cri.FilesystemUsage{
			Timestamp: time.Now().UnixNano(), FsId: &cri.FilesystemIdentifier{Mountpoint: r.cfg.RootDir},
			UsedBytes: value(uint64(d.Bytes)), InodesUsed: value(uint64(d.Inodes)),
		}
	}
	return st
}

// podFiles are what the pod's files below /etc take of the disk, which its containers can write to:
// they count for its oldest container, with its layer (CVE-2020-8557).
func (r *Runtime) podFiles(c *container) (u Usage) {
	if list := r.containersOf(c.rec.SandboxID); len(list) == 0 || list[0] != c {
		return u
	}
	for _, name := range podFiles {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(r.sandboxDir(c.rec.SandboxID), name), &st) == nil {
			u.Bytes, u.Inodes = u.Bytes+st.Blocks*512, u.Inodes+1
		}
	}
	return u
}

// ContainerStats measures one container.
func (r *Runtime) ContainerStats(ctx context.Context, req *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &cri.ContainerStatsResponse{Stats: r.statsOf(ctx, c)}, nil
}

// ListContainerStats measures the containers that run.
func (r *Runtime) ListContainerStats(ctx context.Context, req *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	f := req.GetFilter()
	resp := &cri.ListContainerStatsResponse{}
	for _, c := range r.allContainers() {
		if !c.running() || f.GetId() != "" && !idMatches(c.rec.ID, f.Id) || f.GetPodSandboxId() != "" && !idMatches(c.rec.SandboxID, f.PodSandboxId) ||
			!labelsMatch(c.config.Labels, f.GetLabelSelector()) {
			continue
		}
		resp.Stats = append(resp.Stats, r.statsOf(ctx, c))
	}
	return resp, nil
}

func (r *Runtime) podStats(ctx context.Context, s *sandbox) *cri.PodSandboxStats {
	st := &cri.PodSandboxStats{
		Attributes: &cri.PodSandboxAttributes{Id: s.rec.ID, Metadata: s.config.Metadata, Labels: s.config.Labels, Annotations: s.config.Annotations},
		Linux:      &cri.LinuxPodSandboxStats{},
	}
	for _, c := range r.containersOf(s.rec.ID) {
		if c.running() {
			st.Linux.Containers = append(st.Linux.Containers, r.statsOf(ctx, c))
		}
	}
	if s.config.GetLinux().GetCgroupParent() == "" {
		st.Linux.Cpu, st.Linux.Memory = sumOf(st.Linux.Containers)
	} else {
		group, err := r.cgroupOf(s, "x")
		if err == nil {
			u := r.groups.measure(filepath.Dir(group))
			st.Linux.Cpu, st.Linux.Memory = u.cpuStats(), u.memoryStats()
			st.Linux.Io = &cri.IoUsage{Timestamp: u.at, Psi: u.ioPr}
			st.Linux.Process = &cri.ProcessUsage{Timestamp: u.at, ProcessCount: value(u.pids)}
		}
	}
	if !s.hostNetwork() {
		st.Linux.Network = networkUsage(s.rec.NetNS)
	}
	return st
}

// sumOf is what a pod without a cgroup of its own uses: what its containers do.
func sumOf(containers []*cri.ContainerStats) (*cri.CpuUsage, *cri.MemoryUsage) {
	var cpu, set, usage, rss uint64
	at := time.Now().UnixNano()
	for _, c := range containers {
		at = max(c.GetCpu().GetTimestamp(), c.GetMemory().GetTimestamp())
		cpu += c.GetCpu().GetUsageCoreNanoSeconds().GetValue()
		set += c.GetMemory().GetWorkingSetBytes().GetValue()
		usage += c.GetMemory().GetUsageBytes().GetValue()
		rss += c.GetMemory().GetRssBytes().GetValue()
	}
	return &cri.CpuUsage{Timestamp: at, UsageCoreNanoSeconds: value(cpu)},
		&cri.MemoryUsage{Timestamp: at, WorkingSetBytes: value(set), UsageBytes: value(usage), RssBytes: value(rss)}
}

// PodSandboxStats measures a pod.
func (r *Runtime) PodSandboxStats(ctx context.Context, req *cri.PodSandboxStatsRequest) (*cri.PodSandboxStatsResponse, error) {
	s, err := r.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	return &cri.PodSandboxStatsResponse{Stats: r.podStats(ctx, s)}, nil
}

// ListPodSandboxStats measures the pods whose sandbox is ready.
func (r *Runtime) ListPodSandboxStats(ctx context.Context, req *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error) {
	f := req.GetFilter()
	resp := &cri.ListPodSandboxStatsResponse{}
	for _, s := range r.allSandboxes() {
		if s.line() == nil || f.GetId() != "" && !idMatches(s.rec.ID, f.Id) || !labelsMatch(s.config.Labels, f.GetLabelSelector()) {
			continue
		}
		resp.Stats = append(resp.Stats, r.podStats(ctx, s))
	}
	return resp, nil
}
