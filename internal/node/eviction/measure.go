package eviction

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/base/diskusage"
	"carob/internal/base/tasks"
	"carob/internal/core/eviction"
	"carob/internal/node/spec"
)

// measure reads the resources left on the machine (L7.145). Images are in imageDir, or on the node's disk while
// imageDir is unknown.
func measure(root, imageDir string) ([]eviction.Observation, error) {
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("read how much memory is available: %w", err)
	}
	memory, err := memoryOf(meminfo)
	if err != nil {
		return nil, err
	}
	all := []eviction.Observation{memory}
	if imageDir == "" {
		imageDir = root
	}
	for _, at := range []struct {
		dir          string
		bytes, inode eviction.Signal
	}{
		{root, eviction.NodeFsAvailable, eviction.NodeFsInodesFree},
		{imageDir, eviction.ImageFsAvailable, eviction.ImageFsInodesFree},
	} {
		var fs unix.Statfs_t
		if err := unix.Statfs(at.dir, &fs); err != nil {
			return nil, fmt.Errorf("read how much disk is available: %w",
				&os.PathError{Op: "statfs", Path: at.dir, Err: err})
		}
		all = append(all,
			eviction.Observation{Signal: at.bytes, Available: int64(fs.Bavail) * fs.Bsize,
				Capacity: int64(fs.Blocks) * fs.Bsize},
			eviction.Observation{Signal: at.inode, Available: int64(fs.Ffree), Capacity: int64(fs.Files)})
	}
	if c, err := tasks.Read(); err == nil { // S15.31
		all = append(all, eviction.Observation{Signal: eviction.PIDAvailable, Available: c.Limit - c.Running,
			Capacity: c.Limit})
	}
	return all, nil
}

// memoryOf finds MemTotal and MemAvailable in the text of /proc/meminfo.
func memoryOf(meminfo []byte) (eviction.Observation, error) {
	o := eviction.Observation{Signal: eviction.MemoryAvailable, Available: -1}
	for sc := bufio.NewScanner(bytes.NewReader(meminfo)); sc.Scan(); {
		name, rest, _ := strings.Cut(sc.Text(), ":")
		if name != "MemTotal" && name != "MemAvailable" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		if err != nil {
			return o, fmt.Errorf("read how much memory is available: %w", err)
		}
		if name == "MemTotal" {
			o.Capacity = kib << 10
		} else {
			o.Available = kib << 10
		}
	}
	if o.Available < 0 || o.Capacity == 0 {
		return o, fmt.Errorf("read how much memory is available: the kernel does not report it")
	}
	return o, nil
}

// usages measures these pods' usage of the resource of a signal, and nothing else.
func (m *Manager) usages(ctx context.Context, list []*corev1.Pod, signal eviction.Signal) ([]eviction.Usage, error) {
	byUID := make(map[string]*eviction.Usage, len(list))
	usages := make([]eviction.Usage, len(list))
	for i, pod := range list {
		usages[i].Pod = pod
		byUID[string(pod.UID)] = &usages[i]
	}
	if signal == eviction.PIDAvailable {
		resp, err := m.cfg.Runtime.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{})
		if err != nil {
			return nil, fmt.Errorf("count the processes of pods: %w", err)
		}
		for _, st := range resp.Stats {
			if u := byUID[st.GetAttributes().GetMetadata().GetUid()]; u != nil {
				u.Processes += int64(st.GetLinux().GetProcess().GetProcessCount().GetValue())
			}
		}
		return usages, nil
	}
	stats, err := m.stats(ctx, list)
	if err != nil {
		return nil, err
	}
	onDisk := signal != eviction.MemoryAvailable
	for _, st := range stats {
		labels := st.GetAttributes().GetLabels()
		u := byUID[labels[spec.LabelPodUID]]
		if u == nil {
			continue
		}
		c := eviction.ContainerUsage{
			Name: labels[spec.LabelContainerName], Memory: int64(st.GetMemory().GetWorkingSetBytes().GetValue()),
			Layer:       int64(st.GetWritableLayer().GetUsedBytes().GetValue()),
			LayerInodes: int64(st.GetWritableLayer().GetInodesUsed().GetValue()),
		}
		u.Memory += c.Memory
		if onDisk {
			logs := usageOf(ctx, filepath.Join(m.cfg.LogDir(u.Pod), c.Name))
			c.Logs, c.LogInodes = logs.Bytes, logs.Inodes
		}
		u.Containers = append(u.Containers, c)
	}
	if onDisk {
		for i := range usages {
			m.measureVolumes(ctx, &usages[i])
		}
	}
	return usages, nil
}

// stats are the statistics of the containers of these pods; if there are few pods, each is requested separately.
func (m *Manager) stats(ctx context.Context, list []*corev1.Pod) ([]*cri.ContainerStats, error) {
	filters := []*cri.ContainerStatsFilter{nil}
	if len(list) <= 8 {
		filters = nil
		for _, pod := range list {
			filters = append(filters,
				&cri.ContainerStatsFilter{LabelSelector: map[string]string{spec.LabelPodUID: string(pod.UID)}})
		}
	}
	var all []*cri.ContainerStats
	for _, f := range filters {
		resp, err := m.cfg.Runtime.ListContainerStats(ctx, &cri.ListContainerStatsRequest{Filter: f})
		if err != nil {
			return nil, fmt.Errorf("measure containers: %w", err)
		}
		all = append(all, resp.Stats...)
	}
	return all, nil
}

func (m *Manager) measureVolumes(ctx context.Context, u *eviction.Usage) {
	u.FileBytes, u.FileInodes = filesUsage(m.cfg.PodDir(u.Pod.UID))
	for i := range u.Pod.Spec.Volumes {
		v := &u.Pod.Spec.Volumes[i]
		if v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault {
			continue
		}
		used := usageOf(ctx, m.cfg.VolumeDir(u.Pod.UID, v.Name))
		u.Volumes = append(u.Volumes, eviction.VolumeUsage{Name: v.Name, Bytes: used.Bytes, Inodes: used.Inodes})
	}
}

// usageOf measures a directory; what can't be read counts nothing.
func usageOf(ctx context.Context, dir string) diskusage.Usage {
	used, err := diskusage.Of(ctx, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).V(2).Info("Measuring a directory of a pod was incomplete", "err", err)
	}
	return used
}
