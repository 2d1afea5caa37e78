package spec

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/resources"
)

func containerConfig(in *ContainerInput, env *environment) (*cri.ContainerConfig, error) {
	c := in.Container
	security, err := containerSecurity(in)
	if err != nil {
		return nil, err
	}
	annotations, err := containerAnnotations(in.Pod, c, in.Attempt)
	if err != nil {
		return nil, err
	}
	mounts, err := mounts(in, env)
	if err != nil {
		return nil, err
	}
	command, err := env.room.expandAll(c.Command, env.get)
	if err != nil {
		return nil, err
	}
	args, err := env.room.expandAll(c.Args, env.get)
	if err != nil {
		return nil, err
	}
	devices, err := devices(in)
	if err != nil {
		return nil, err
	}
	var cdi []*cri.CDIDevice
	if d := in.Devices; d != nil {
		for _, n := range d.Nodes {
			taken := func(have *cri.Device) bool { return have.ContainerPath == n.ContainerPath }
			if !slices.ContainsFunc(devices, taken) {
				devices = append(devices, n)
			}
		}
		for name, value := range d.Annotations { // any order: a map becomes a map
			if _, own := annotations[name]; !own && !strings.HasPrefix(name, "io.kubernetes.") {
				annotations[name] = value
			}
		}
		for _, name := range d.CDI {
			cdi = append(cdi, &cri.CDIDevice{Name: name})
		}
	}
	return &cri.ContainerConfig{
		CDIDevices:  cdi,
		Metadata:    &cri.ContainerMetadata{Name: c.Name, Attempt: uint32(in.Attempt)},
		Image:       &cri.ImageSpec{Image: in.Image.Ref, UserSpecifiedImage: c.Image},
		Command:     command,
		Args:        args,
		WorkingDir:  c.WorkingDir,
		Envs:        env.keyValues(),
		Mounts:      mounts,
		Devices:     devices,
		Labels:      containerLabels(in.Pod, c),
		Annotations: annotations,
		LogPath:     ContainerLog(c.Name, in.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &cri.LinuxContainerConfig{
			Resources:       ContainerResources(in.Pod, c, in.Node),
			SecurityContext: security,
		},
	}, nil
}

// ContainerResources are the limits of a container (L3.116–119), at its start and for a resize.
func ContainerResources(pod *corev1.Pod, c *corev1.Container, node *Node) *cri.LinuxContainerResources {
	cg := resources.ContainerCgroup(pod, c)
	r := &cri.LinuxContainerResources{
		CpuPeriod:          resources.CPUPeriod,
		CpuQuota:           node.quota(cg.CPUQuota),
		CpuShares:          int64(cg.CPUShares),
		MemoryLimitInBytes: cg.Memory,
		OomScoreAdj:        resources.OOMScoreAdj(pod, c, node.Capacity.Memory().Value()),
	}
	r.HugepageLimits = hugePages(cg.HugePages, node.PageSizes)
	if node.CgroupV2 {
		r.Unified = map[string]string{"memory.oom.group": "1"} // L3.117k
		if node.OneProcessOOM {
			r.Unified["memory.oom.group"] = "0"
		}
		maps.Copy(r.Unified, node.MemoryQoS.Container(pod, c, node.Allocatable.Memory().Value()))
	}
	switch { // no swap (L3.117l), also for a container without a limit of memory
	case !node.SwapController:
	case node.CgroupV2:
		swap := resources.LimitedSwap(pod, c, node.Capacity.Memory().Value(), node.Swap)
		r.Unified["memory.swap.max"] = strconv.FormatInt(swap, 10)
	default:
		r.MemorySwapLimitInBytes = cg.Memory // the same: no swap. Version 1 needs a limit for that
	}
	return r
}

// noQuota lifts a limit of CPU time; 0 would leave that of a container which is resized.
const noQuota = -1

// quota is the limit of CPU time that the node enforces.
func (n *Node) quota(wanted int64) int64 {
	if n.NoCPUQuota {
		return noQuota
	}
	return wanted
}

// hugePages are the limits for all sizes that the machine has: 0 where nothing was requested (L3.117n).
func hugePages(wanted []resources.HugePage, sizes []string) []*cri.HugepageLimit {
	var out []*cri.HugepageLimit
	for _, h := range wanted {
		out = append(out, &cri.HugepageLimit{PageSize: pageSize(h.Size), Limit: uint64(h.Limit)})
	}
	for _, size := range sizes {
		if !slices.ContainsFunc(out, func(h *cri.HugepageLimit) bool { return h.PageSize == size }) {
			out = append(out, &cri.HugepageLimit{PageSize: size})
		}
	}
	return out
}

// pageSize spells a page size as cgroups do: 2MB for 2Mi.
func pageSize(size string) string {
	if n := len(size); n > 1 && size[n-1] == 'i' {
		return size[:n-1] + "B"
	}
	return size
}
