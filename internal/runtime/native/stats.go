package native

import (
	"context"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/netdev"
)

func value(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }

// statsOf measures a running container. It waits for the walk of its layer until ctx ends.
func (r *Runtime) statsOf(ctx context.Context, c *container) *cri.ContainerStats {
	st := r.usageOf(c)
	st.WritableLayer = r.layerStats(r.layerOf(ctx, c, 0))
	return st
}

// usageOf is what a running container uses, without its writable layer.
func (r *Runtime) usageOf(c *container) *cri.ContainerStats {
	rec := c.record()
	st := &cri.ContainerStats{Attributes: &cri.ContainerAttributes{
		Id: rec.ID, Metadata: c.config.Metadata, Labels: c.config.Labels, Annotations: c.config.Annotations,
	}}
	if c.running() {
		u := r.groups.Measure(rec.Cgroup)
		st.Cpu, st.Memory = u.CPUStats(), u.MemoryStats()
		st.Swap, st.Io = u.SwapStats(), u.IOStats()
	}
	return st
}

// podFiles returns the disk usage of the pod's files below /etc, which its containers can write to:
// it is added to the writable layer of the oldest container (CVE-2020-8557).
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
func (r *Runtime) ContainerStats(ctx context.Context, req *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse,
	error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, layerPatience)
	defer cancel()
	return &cri.ContainerStatsResponse{Stats: r.statsOf(ctx, c)}, nil
}

// ListContainerStats measures the containers that run.
func (r *Runtime) ListContainerStats(ctx context.Context,
	req *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, layerPatience)
	defer cancel()
	f := req.GetFilter()
	resp := &cri.ListContainerStatsResponse{}
	for _, c := range r.allContainers() {
		if !c.running() || f.GetId() != "" && !idMatches(c.rec.ID, f.Id) || f.GetPodSandboxId() != "" &&
			!idMatches(c.rec.SandboxID, f.PodSandboxId) ||
			!labelsMatch(c.config.Labels, f.GetLabelSelector()) {
			continue
		}
		resp.Stats = append(resp.Stats, r.statsOf(ctx, c))
	}
	return resp, nil
}

// podStats measures a pod. The size of a writable layer may be as old as in a scrape: clients request the statistics of
// all pods, and often.
func (r *Runtime) podStats(ctx context.Context, s *sandbox) *cri.PodSandboxStats {
	st := &cri.PodSandboxStats{
		Attributes: &cri.PodSandboxAttributes{Id: s.rec.ID, Metadata: s.config.Metadata, Labels: s.config.Labels,
			Annotations: s.config.Annotations},
		Linux: &cri.LinuxPodSandboxStats{},
	}
	for _, c := range r.containersOf(s.rec.ID) {
		if c.running() {
			one := r.usageOf(c)
			one.WritableLayer = r.layerStats(r.layerOf(ctx, c, layerAge))
			st.Linux.Containers = append(st.Linux.Containers, one)
		}
	}
	if s.config.GetLinux().GetCgroupParent() == "" {
		st.Linux.Cpu, st.Linux.Memory = sumOf(st.Linux.Containers)
	} else {
		group, err := r.cgroupOf(s, "x")
		if err == nil {
			u := r.groups.Measure(filepath.Dir(group))
			st.Linux.Cpu, st.Linux.Memory = u.CPUStats(), u.MemoryStats()
			st.Linux.Io, st.Linux.Process = u.IOStats(), u.ProcessStats()
		}
	}
	if !s.hostNetwork() {
		st.Linux.Network = netdev.Usage(s.rec.NetNS)
	}
	return st
}

// sumOf returns the usage of a pod without a cgroup of its own: the sum of its containers.
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
func (r *Runtime) PodSandboxStats(ctx context.Context, req *cri.PodSandboxStatsRequest) (*cri.PodSandboxStatsResponse,
	error) {
	s, err := r.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, layerPatience)
	defer cancel()
	return &cri.PodSandboxStatsResponse{Stats: r.podStats(ctx, s)}, nil
}

// ListPodSandboxStats measures the pods whose sandbox is ready.
func (r *Runtime) ListPodSandboxStats(ctx context.Context,
	req *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, layerPatience)
	defer cancel()
	f := req.GetFilter()
	resp := &cri.ListPodSandboxStatsResponse{}
	for _, s := range r.allSandboxes() {
		if s.line() == nil || f.GetId() != "" && !idMatches(s.rec.ID, f.Id) ||
			!labelsMatch(s.config.Labels, f.GetLabelSelector()) {
			continue
		}
		resp.Stats = append(resp.Stats, r.podStats(ctx, s))
	}
	return resp, nil
}
