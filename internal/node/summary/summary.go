package summary

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/resources"
	"carob/internal/node/csi"
	"carob/internal/node/spec"
)

// Config is what a Source reads. Each function may be nil: then its figures are not known.
type Config struct {
	Node    string
	Root    string // on the file system that pods use
	Images  func(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error)
	Volumes func(types.UID) map[string]spec.Volume // those that are set up
	Claims  func() []csi.Stats                     // of drivers, for each pod and claim
	Logs    func(*corev1.Pod) string               // the directory of its logs
	System  func() []Container                     // parts of the system
}

// Source computes summaries. Its methods may be called from any goroutine.
type Source struct {
	cfg   Config
	rates rates
	disks disks
	stop  context.CancelFunc
}

// New makes a Source; nothing is measured before the first request.
func New(cfg Config) *Source {
	s := &Source{cfg: cfg}
	s.disks.ctx, s.stop = context.WithCancel(context.Background())
	s.disks.slow = slow
	return s
}

// Close ends what is being measured.
func (s *Source) Close() { s.stop() }

// Sample is what the runtime measured of a running container.
type Sample struct {
	Pod       *corev1.Pod
	Container string
	Started   time.Time
	Stats     *cri.ContainerStats
}

// group are the containers of a pod.
type group struct {
	pod        *corev1.Pod
	containers []Sample
}

func groups(samples []Sample) []group {
	var list []group
	for _, m := range samples {
		if n := len(list); n == 0 || list[n-1].pod.UID != m.Pod.UID {
			list = append(list, group{pod: m.Pod})
		}
		last := &list[len(list)-1]
		last.containers = append(last.containers, m)
	}
	return list
}

// Brief has only CPU and memory; no volume, log or file system is measured for it.
func (s *Source) Brief(samples []Sample, whole map[string]*cri.PodSandboxStats) *Summary {
	out := s.usage(samples, whole)
	for i := range out.Node.System {
		out.Node.System[i].IO, out.Node.System[i].Swap = nil, nil
	}
	return out
}

// usage is what Brief and Whole have in common.
func (s *Source) usage(samples []Sample, whole map[string]*cri.PodSandboxStats) *Summary {
	n := MeasureNode(s.cfg.Node)
	s.rates.fill("node", n.CPU)
	out := &Summary{Node: n, Pods: []Pod{}}
	if s.cfg.System != nil {
		for _, c := range s.cfg.System() {
			s.rates.fill("system/"+c.Name, c.CPU)
			out.Node.System = append(out.Node.System, c)
		}
	}
	for _, g := range groups(samples) {
		p := Pod{PodRef: Ref{g.pod.Name, g.pod.Namespace, string(g.pod.UID)}}
		if t := g.pod.Status.StartTime; t != nil {
			p.StartTime = t.Time
		}
		if st := whole[string(g.pod.UID)]; st != nil {
			p.CPU, p.Memory = cpuOf(st.GetLinux().GetCpu()),
				memoryOf(st.GetLinux().GetMemory(), resources.PodCgroup(g.pod).Memory > 0)
			s.rates.fill("pod/"+string(g.pod.UID), p.CPU)
		}
		for _, m := range g.containers {
			c := Container{Name: m.Container, StartTime: m.Started, CPU: cpuOf(m.Stats.GetCpu()),
				Memory: memoryOf(m.Stats.GetMemory(), limited(g.pod, m.Container))}
			s.rates.fill("container/"+m.Stats.GetAttributes().GetId(), c.CPU)
			p.Containers = append(p.Containers, c)
		}
		out.Pods = append(out.Pods, p)
	}
	s.rates.sweep(time.Now())
	return out
}

// limited reports whether a container of a pod has a limit of memory.
func limited(pod *corev1.Pod, container string) bool {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == container {
				return resources.ContainerCgroup(pod, &list[i]).Memory > 0
			}
		}
	}
	return false
}

// Keys of measurements.
const (
	nodeFs  = "node"
	imageFs = "images"
)

// Whole has everything. It waits briefly for what is measured on disks, until ctx ends at most.
func (s *Source) Whole(ctx context.Context, samples []Sample, whole map[string]*cri.PodSandboxStats) *Summary {
	out := s.usage(samples, whole)
	out.Node.measureRest()
	list := []measurement{{nodeFs, filePeriod, func(context.Context) []Fs { return fileSystem(s.cfg.Root) }}}
	if s.cfg.Images != nil {
		list = append(list, measurement{imageFs, filePeriod, s.images})
	}
	all := groups(samples)
	for _, g := range all {
		list = append(list, s.ofPod(g.pod, g.containers)...)
	}
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	known, claims := s.disks.read(wait, list), s.claims()
	if found := known[nodeFs]; len(found) > 0 {
		out.Node.Fs = &found[0]
	}
	layers := out.Node.Fs
	if found := known[imageFs]; len(found) == 2 {
		out.Node.Runtime = &Runtime{ImageFs: &found[0], ContainerFs: &found[1]}
		layers = out.Node.Runtime.ContainerFs
	}
	for i, g := range all {
		p := &out.Pods[i]
		if st := whole[string(g.pod.UID)]; st != nil {
			l := st.GetLinux()
			p.Network, p.Processes, p.IO = networkOf(l.GetNetwork()), processesOf(l.GetProcess()), ioOf(l.GetIo())
		}
		for j, m := range g.containers {
			c := &p.Containers[j]
			c.IO, c.Swap, c.Rootfs = ioOf(m.Stats.GetIo()), swapOf(m.Stats.GetSwap()),
				layerOf(m.Stats.GetWritableLayer(), layers)
			if found := known[logKey(g.pod.UID, m.Container)]; len(found) > 0 {
				c.Logs = &found[0]
			}
		}
		p.Swap, p.Volumes = swapOfAll(p.Containers), volumes(g.pod, claims[string(g.pod.UID)], known)
		var set map[string]spec.Volume
		if s.cfg.Volumes != nil {
			set = s.cfg.Volumes(g.pod.UID)
		}
		p.Ephemeral = ephemeral(g.pod, out.Node.Fs, p.Containers, known, set)
	}
	return out
}

// images are the file systems of images and of writable layers, and what both use of them.
func (s *Source) images(ctx context.Context) []Fs {
	resp, err := s.cfg.Images(ctx, &cri.ImageFsInfoRequest{})
	if err != nil || len(resp.GetImageFilesystems()) == 0 {
		return nil
	}
	layers := resp.GetContainerFilesystems()
	if len(layers) == 0 {
		layers = resp.GetImageFilesystems()
	}
	var list []Fs
	for _, u := range []*cri.FilesystemUsage{resp.GetImageFilesystems()[0], layers[0]} {
		found := fileSystem(u.GetFsId().GetMountpoint())
		if found == nil {
			return nil
		}
		found[0].UsedBytes = number(u.GetUsedBytes())
		if n := number(u.GetInodesUsed()); n != nil {
			found[0].InodesUsed = n
		}
		list = append(list, found[0])
	}
	return list
}

// layerOf is the writable layer of a container on the file system of all of them; nil if it is not known.
func layerOf(u *cri.FilesystemUsage, all *Fs) *Fs {
	if u == nil {
		return nil
	}
	f := &Fs{Time: time.Unix(0, u.Timestamp), UsedBytes: number(u.UsedBytes), InodesUsed: number(u.InodesUsed)}
	if all != nil {
		f.AvailableBytes, f.CapacityBytes, f.InodesFree, f.Inodes = all.AvailableBytes, all.CapacityBytes,
			all.InodesFree, all.Inodes
	}
	return f
}
