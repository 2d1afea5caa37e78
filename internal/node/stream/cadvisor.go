package stream

import (
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/node/summary"
	cruntime "carob/internal/runtime"
)

// cadvisorMetrics are the families of /metrics/cadvisor for which the runtime has values, with cAdvisor's names and
// labels: id and name are both the container's ID.
func (s *Server) cadvisorMetrics(w http.ResponseWriter, req *http.Request) {
	var samples []summary.Sample
	var sandboxes map[string]*cri.PodSandboxStats
	var counted cruntime.Counters
	if s.cfg.Counter != nil {
		counted = s.cfg.Counter.Counters(req.Context())
		samples, sandboxes = s.join(counted.Stats), sandboxesByUID(counted.Sandboxes)
	} else {
		var err error
		if samples, err = s.samples(req); err != nil {
			http.Error(w, err.Error(), httpCode(err))
			return
		}
		sandboxes = s.sandboxStats(req)
	}
	p := pages.Get().(*page)
	f := p.families
	now := time.Now().Unix()
	for _, m := range samples {
		labels := containerLabels(m)
		f.container(m, labels, now)
		if c, ok := counted.Containers[m.Stats.GetAttributes().GetId()]; ok {
			f.counters(m, labels, &c)
		}
	}
	for _, pod := range s.cfg.Pods.List() {
		if st := sandboxes[string(pod.UID)]; st != nil {
			f.network(pod, st)
			f.packets(pod, st.GetAttributes().GetId(), counted.Interfaces[st.GetAttributes().GetId()])
		}
	}
	f.add("machine_cpu_cores", "gauge", "Number of logical CPU cores.", `boot_id="",machine_id="",system_uuid=""`,
		float64(runtime.NumCPU()))
	if m := summary.MeasureMemory(); m != nil && m.AvailableBytes != nil && m.WorkingSetBytes != nil {
		f.add("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.",
			`boot_id="",machine_id="",system_uuid=""`,
			float64(*m.AvailableBytes+*m.WorkingSetBytes))
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	p.text = f.appendTo(p.text[:0])
	w.Header().Set("Content-Length", strconv.Itoa(len(p.text)))
	_, _ = w.Write(p.text) // the client may have gone
	for _, m := range f {
		m.text = m.text[:0]
	}
	pages.Put(p)
}

// page is what a scrape writes. The next one uses its memory again: to grow it anew is most of what a scrape allocates.
type page struct {
	families families
	text     []byte
}

var pages = sync.Pool{New: func() any { return &page{families: families{}} }}

// families are metrics in the text form, by name.
type families map[string]*metricFamily

// metricFamily is the text of one family, without its name.
type metricFamily struct {
	kind, help string
	text       []byte
}

// add adds a series. labels are those between the braces, made with label.
func (f families) add(name, kind, help, labels string, value float64) {
	m := f[name]
	if m == nil {
		m = &metricFamily{kind: kind, help: help}
		f[name] = m
	}
	m.text = append(m.text, name...)
	m.text = append(m.text, '{')
	m.text = append(m.text, labels...)
	m.text = append(m.text, "} "...)
	m.text = append(strconv.AppendFloat(m.text, value, 'g', -1, 64), '\n')
}

// appendTo appends the families that have series, in the order of their names, the series as they were added.
func (f families) appendTo(page []byte) []byte {
	size := 0
	for name, m := range f {
		size += len(m.text) + len(m.help) + len(m.kind) + 2*len(name) + len("# HELP  \n# TYPE  \n")
	}
	page = slices.Grow(page, size)
	for _, name := range slices.Sorted(maps.Keys(f)) {
		m := f[name]
		if len(m.text) == 0 { // of an earlier page
			continue
		}
		page = append(page, "# HELP "+name+" "+m.help+"\n# TYPE "+name+" "+m.kind+"\n"...)
		page = append(page, m.text...)
	}
	return page
}

// labelEscapes are what the text form writes differently in the value of a label.
var labelEscapes = strings.NewReplacer("\\", `\\`, "\"", `\"`, "\n", `\n`)

// label is a label in the text form.
func label(name, value string) string { return name + `="` + labelEscapes.Replace(value) + `"` }

// commonLabels are those of each series of a container, or of an interface of a pod: then container and image are
// empty, and more is the label with its name.
func commonLabels(pod *corev1.Pod, container, id, image, more string) string {
	return label("container", container) + "," + label("id", id) + "," + label("image", image) + more + "," +
		label("name", id) + "," + label("namespace", pod.Namespace) + "," + label("pod", pod.Name)
}

// containerLabels are those of each series of a container.
func containerLabels(m summary.Sample) string {
	image := ""
	if c := containerStatus(m.Pod, m.Container); c != nil {
		image = c.Image
	}
	return commonLabels(m.Pod, m.Container, m.Stats.GetAttributes().GetId(), image, "")
}

// counters adds the families that only cAdvisor has. As there, only containers with a CPU limit have periods.
func (f families) counters(m summary.Sample, labels string, c *cruntime.ContainerCounters) {
	if status := containerStatus(m.Pod, m.Container); status != nil && status.Resources != nil &&
		!status.Resources.Limits.Cpu().IsZero() {
		f.add("container_cpu_cfs_periods_total", "counter", "Number of elapsed enforcement period intervals.", labels,
			float64(c.Periods))
		f.add("container_cpu_cfs_throttled_periods_total", "counter", "Number of throttled period intervals.", labels,
			float64(c.ThrottledPeriods))
		f.add("container_cpu_cfs_throttled_seconds_total", "counter",
			"Total time duration the container has been throttled.", labels, c.Throttled.Seconds())
	}
	f.add("container_memory_cache", "gauge", "Number of bytes of page cache memory.", labels, float64(c.Cache))
	f.add("container_memory_mapped_file", "gauge", "Size of memory mapped files in bytes.", labels, float64(c.Mapped))
	for _, d := range c.Devices {
		at := labels + "," + label("device", d.Name)
		f.add("container_fs_reads_total", "counter", "Cumulative count of reads completed", at, float64(d.Reads))
		f.add("container_fs_writes_total", "counter", "Cumulative count of writes completed", at, float64(d.Writes))
		f.add("container_fs_reads_bytes_total", "counter", "Cumulative count of bytes read", at, float64(d.BytesRead))
		f.add("container_fs_writes_bytes_total", "counter", "Cumulative count of bytes written", at,
			float64(d.BytesWritten))
	}
}

// packets adds the packets of a pod with its own network.
func (f families) packets(pod *corev1.Pod, id string, list []cruntime.InterfaceCounters) {
	for _, i := range list {
		labels := commonLabels(pod, "", id, "", ","+label("interface", i.Name))
		for _, c := range []struct {
			name, help string
			v          uint64
		}{
			{"container_network_receive_packets_total", "Cumulative count of packets received", i.Received},
			{"container_network_receive_packets_dropped_total",
				"Cumulative count of packets dropped while receiving", i.ReceivedDropped},
			{"container_network_transmit_packets_total", "Cumulative count of packets transmitted", i.Transmitted},
			{"container_network_transmit_packets_dropped_total",
				"Cumulative count of packets dropped while transmitting", i.TransmittedDropped},
		} {
			f.add(c.name, "counter", c.help, labels, float64(c.v))
		}
	}
}

// container adds the series of a running container.
func (f families) container(m summary.Sample, labels string, now int64) {
	gauge := func(name, help string, v *cri.UInt64Value) {
		if v != nil {
			f.add(name, "gauge", help, labels, float64(v.Value))
		}
	}
	f.add("container_last_seen", "gauge", "Last time a container was seen by the exporter", labels, float64(now))
	f.add("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds.", labels,
		float64(m.Started.Unix()))
	if v := m.Stats.GetCpu().GetUsageCoreNanoSeconds(); v != nil {
		f.add("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.",
			labels+`,cpu="total"`, float64(v.Value)/1e9)
	}
	memory := m.Stats.GetMemory()
	gauge("container_memory_usage_bytes",
		"Current memory usage in bytes, including all memory regardless of when it was accessed",
		memory.GetUsageBytes())
	gauge("container_memory_working_set_bytes", "Current working set in bytes.", memory.GetWorkingSetBytes())
	gauge("container_memory_rss", "Size of RSS in bytes.", memory.GetRssBytes())
	for _, c := range []struct {
		kind string
		v    *cri.UInt64Value
	}{{"pgfault", memory.GetPageFaults()}, {"pgmajfault", memory.GetMajorPageFaults()}} {
		if c.v != nil {
			f.add("container_memory_failures_total", "counter", "Cumulative count of memory allocation failures.",
				labels+`,failure_type="`+c.kind+`",scope="container"`, float64(c.v.Value))
		}
	}
	if swap := m.Stats.GetSwap().GetSwapUsageBytes(); swap != nil {
		f.add("container_memory_swap", "gauge", "Container swap usage in bytes.", labels, float64(swap.Value))
	}
	if fs := m.Stats.GetWritableLayer(); fs != nil {
		at := labels + "," + label("device", fs.GetFsId().GetMountpoint())
		if fs.UsedBytes != nil {
			f.add("container_fs_usage_bytes", "gauge",
				"Number of bytes that are consumed by the container on this filesystem.", at,
				float64(fs.UsedBytes.Value))
		}
	}
	f.limits(m, labels)
}

// limits adds the limits of the container.
func (f families) limits(m summary.Sample, labels string) {
	c := containerStatus(m.Pod, m.Container)
	if c == nil || c.Resources == nil {
		return
	}
	if cpu := c.Resources.Limits.Cpu(); !cpu.IsZero() {
		f.add("container_spec_cpu_period", "gauge", "CPU period of the container.", labels, 100000)
		f.add("container_spec_cpu_quota", "gauge", "CPU quota of the container.", labels, float64(cpu.MilliValue()*100))
	}
	f.add("container_spec_memory_limit_bytes", "gauge", "Memory limit for the container.", labels,
		float64(c.Resources.Limits.Memory().Value()))
}

// network adds the traffic of a pod with its own network.
func (f families) network(pod *corev1.Pod, st *cri.PodSandboxStats) {
	n := st.GetLinux().GetNetwork()
	if n == nil {
		return
	}
	list := n.Interfaces
	if n.DefaultInterface != nil && !slices.ContainsFunc(list,
		func(i *cri.NetworkInterfaceUsage) bool { return i.Name == n.DefaultInterface.Name }) {
		list = append([]*cri.NetworkInterfaceUsage{n.DefaultInterface}, list...)
	}
	for _, i := range list {
		labels := commonLabels(pod, "", st.GetAttributes().GetId(), "", ","+label("interface", i.Name))
		for _, c := range []struct {
			name, help string
			v          *cri.UInt64Value
		}{
			{"container_network_receive_bytes_total", "Cumulative count of bytes received", i.RxBytes},
			{"container_network_receive_errors_total", "Cumulative count of errors encountered while receiving",
				i.RxErrors},
			{"container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", i.TxBytes},
			{"container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting",
				i.TxErrors},
		} {
			if c.v != nil {
				f.add(c.name, "counter", c.help, labels, float64(c.v.Value))
			}
		}
	}
}
