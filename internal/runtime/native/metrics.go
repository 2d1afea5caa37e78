package native

import (
	"context"
	"slices"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/netdev"
	"carob/internal/runtime/native/openfiles"
)

// metric is one value of a container or pod, with cAdvisor's name, so that dashboards for kubelets
// work.
type metric struct {
	name, help string
	kind       cri.MetricType
	label      string // one more label than the common ones; "" for none
}

// Labels of every metric; the values are in this order.
var metricLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

var (
	cpuSeconds = metric{"container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds",
		cri.MetricType_COUNTER, ""}
	memoryUsage = metric{"container_memory_usage_bytes",
		"Current memory usage in bytes, including all memory regardless of when it was accessed", cri.MetricType_GAUGE,
		""}
	memoryWorking = metric{"container_memory_working_set_bytes", "Current working set in bytes", cri.MetricType_GAUGE,
		""}
	memoryRSS      = metric{"container_memory_rss", "Size of RSS in bytes", cri.MetricType_GAUGE, ""}
	memorySwap     = metric{"container_memory_swap", "Container swap usage in bytes", cri.MetricType_GAUGE, ""}
	memoryFailures = metric{"container_memory_failures_total", "Cumulative count of memory allocation failures",
		cri.MetricType_COUNTER, "failure_type"}
	memoryLimit = metric{"container_spec_memory_limit_bytes", "Memory limit for the container",
		cri.MetricType_GAUGE, ""}
	processes = metric{"container_processes", "Number of processes running inside the container",
		cri.MetricType_GAUGE, ""}
	fsUsage = metric{"container_fs_usage_bytes",
		"Number of bytes that are consumed by the container on this filesystem", cri.MetricType_GAUGE, ""}
	startSeconds = metric{"container_start_time_seconds", "Start time of the container since unix epoch in seconds",
		cri.MetricType_GAUGE, ""}
	receiveBytes = metric{"container_network_receive_bytes_total", "Cumulative count of bytes received",
		cri.MetricType_COUNTER, "interface"}
	receiveErrors = metric{"container_network_receive_errors_total",
		"Cumulative count of errors encountered while receiving", cri.MetricType_COUNTER, "interface"}
	transmitBytes = metric{"container_network_transmit_bytes_total", "Cumulative count of bytes transmitted",
		cri.MetricType_COUNTER, "interface"}
	transmitErrors = metric{"container_network_transmit_errors_total",
		"Cumulative count of errors encountered while transmitting", cri.MetricType_COUNTER, "interface"}
	allMetrics = []metric{cpuSeconds, memoryUsage, memoryWorking, memoryRSS, memorySwap, memoryFailures,
		memoryLimit, processes, fsUsage, startSeconds, receiveBytes, receiveErrors, transmitBytes, transmitErrors}
	nanosPerSeconds = uint64(1e9)
)

// ListMetricDescriptors returns the metrics of ListPodSandboxMetrics.
func (r *Runtime) ListMetricDescriptors(context.Context,
	*cri.ListMetricDescriptorsRequest) (*cri.ListMetricDescriptorsResponse, error) {
	resp := &cri.ListMetricDescriptorsResponse{}
	for _, m := range allMetrics {
		d := &cri.MetricDescriptor{Name: m.name, Help: m.help, LabelKeys: slices.Clone(metricLabels)}
		if m.label != "" {
			d.LabelKeys = append(d.LabelKeys, m.label)
		}
		resp.Descriptors = append(resp.Descriptors, d)
	}
	return resp, nil
}

// figures collects the metrics of one container or pod.
type figures struct {
	labels []string
	list   []*cri.Metric
}

func (f *figures) add(m metric, v uint64, extra ...string) {
	f.list = append(f.list, &cri.Metric{
		Name: m.name, MetricType: m.kind, LabelValues: append(slices.Clone(f.labels), extra...), Value: value(v),
	})
}

func (f *figures) addUsage(u *cgroups.Usage) {
	f.add(cpuSeconds, u.CPU/nanosPerSeconds)
	f.add(memoryUsage, u.Memory)
	f.add(memoryWorking, u.WorkingSet())
	f.add(memoryRSS, u.RSS)
	f.add(memorySwap, u.Swap)
	f.add(memoryFailures, u.Faults, "pgfault")
	f.add(memoryFailures, u.MajorFaults, "pgmajfault")
	f.add(memoryLimit, u.Limit)
	f.add(processes, u.PIDs)
}

// ListPodSandboxMetrics measures the pods whose sandbox is ready.
func (r *Runtime) ListPodSandboxMetrics(ctx context.Context,
	_ *cri.ListPodSandboxMetricsRequest) (*cri.ListPodSandboxMetricsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, layerPatience)
	defer cancel()
	resp := &cri.ListPodSandboxMetricsResponse{}
	for _, s := range r.allSandboxes() {
		if s.line() != nil {
			resp.PodMetrics = append(resp.PodMetrics, r.podMetrics(ctx, s))
		}
	}
	return resp, nil
}

func (r *Runtime) podMetrics(ctx context.Context, s *sandbox) *cri.PodSandboxMetrics {
	m := s.config.GetMetadata()
	group := r.podCgroup(s)
	pod := figures{labels: []string{"", group, "", s.rec.ID, m.GetNamespace(), m.GetName()}}
	if group != "" {
		u := r.groups.Measure(group)
		pod.addUsage(&u)
	}
	if !s.hostNetwork() {
		if n := netdev.Usage(s.rec.NetNS); n != nil {
			for _, i := range append([]*cri.NetworkInterfaceUsage{n.DefaultInterface}, n.Interfaces...) {
				if i != nil {
					pod.add(receiveBytes, i.GetRxBytes().GetValue(), i.Name)
					pod.add(receiveErrors, i.GetRxErrors().GetValue(), i.Name)
					pod.add(transmitBytes, i.GetTxBytes().GetValue(), i.Name)
					pod.add(transmitErrors, i.GetTxErrors().GetValue(), i.Name)
				}
			}
		}
	}
	out := &cri.PodSandboxMetrics{PodSandboxId: s.rec.ID, Metrics: pod.list}
	for _, c := range r.containersOf(s.rec.ID) {
		if !c.running() {
			continue
		}
		rec := c.record()
		f := figures{labels: []string{c.config.GetMetadata().GetName(), rec.Cgroup, rec.ImageName, rec.ID,
			m.GetNamespace(), m.GetName()}}
		u := r.groups.Measure(rec.Cgroup)
		f.addUsage(&u)
		f.add(startSeconds, uint64(rec.StartedAt)/nanosPerSeconds)
		if d, err := r.layerOf(ctx, c, layerAge); err == nil {
			f.add(fsUsage, uint64(d.Bytes))
		}
		out.ContainerMetrics = append(out.ContainerMetrics, &cri.ContainerMetrics{ContainerId: rec.ID, Metrics: f.list})
	}
	return out
}

// Counters implements runtime.Counter.
func (r *Runtime) Counters(ctx context.Context) runtime.Counters {
	ctx, cancel := context.WithTimeout(ctx, layerPatience)
	defer cancel()
	out := runtime.Counters{Containers: map[string]runtime.ContainerCounters{},
		Interfaces: map[string][]runtime.InterfaceCounters{}}
	for _, c := range r.allContainers() {
		if c.running() {
			u, n := r.groups.Scrape(c.record().Cgroup, func(path string) (string, error) {
				return r.scraped.Read(c.rec.ID, path, openfiles.Open)
			})
			if !c.running() {
				r.scraped.Forget(c.rec.ID) // its end came before the files were opened
			}
			out.Stats = append(out.Stats, &cri.ContainerStats{
				Attributes: &cri.ContainerAttributes{Id: c.rec.ID, Metadata: c.config.Metadata, Labels: c.config.Labels,
					Annotations: c.config.Annotations},
				Cpu: u.CPUStats(), Memory: u.MemoryStats(), Swap: u.SwapStats(),
				WritableLayer: r.layerStats(r.layerOf(ctx, c, layerAge)),
			})
			counted := runtime.ContainerCounters{Periods: n.Periods, ThrottledPeriods: n.ThrottledPeriods,
				Throttled: n.Throttled, Cache: n.Cache, Mapped: n.Mapped}
			for _, d := range n.Devices {
				counted.Devices = append(counted.Devices, runtime.DeviceCounters(d))
			}
			out.Containers[c.rec.ID] = counted
		}
	}
	for _, s := range r.allSandboxes() {
		if s.line() != nil && !s.hostNetwork() {
			text, err := r.scraped.Read(s.rec.ID, s.rec.NetNS, netdev.Open)
			if s.line() == nil {
				r.scraped.Forget(s.rec.ID)
			}
			if err != nil {
				continue
			}
			usage, packets := netdev.Count(text)
			out.Interfaces[s.rec.ID] = packets
			out.Sandboxes = append(out.Sandboxes, &cri.PodSandboxStats{
				Attributes: &cri.PodSandboxAttributes{Id: s.rec.ID, Metadata: s.config.Metadata},
				Linux:      &cri.LinuxPodSandboxStats{Network: usage},
			})
		}
	}
	return out
}

// podCgroup returns the cgroup that the agent created for a pod, "" if there is none.
func (r *Runtime) podCgroup(s *sandbox) string {
	if s.config.GetLinux().GetCgroupParent() == "" {
		return ""
	}
	group, err := r.cgroupOf(s, "x")
	if err != nil {
		return ""
	}
	return cgroups.Parent(group)
}
