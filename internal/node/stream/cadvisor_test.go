package stream

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/node/summary"
	"carob/internal/runtime"
)

// The traffic of a pod is that of each of its interfaces, the default one once.
func TestNetworkFamilies(t *testing.T) {
	n := func(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }
	eth := &cri.NetworkInterfaceUsage{Name: "eth0", RxBytes: n(10), TxBytes: n(20), TxErrors: n(0)}
	f := families{}
	f.network(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}, &cri.PodSandboxStats{
		Attributes: &cri.PodSandboxAttributes{Id: "sb"},
		Linux: &cri.LinuxPodSandboxStats{Network: &cri.NetworkUsage{
			DefaultInterface: eth, Interfaces: []*cri.NetworkInterfaceUsage{eth, {Name: "net1", RxBytes: n(1)}},
		}},
	})
	f.network(&corev1.Pod{}, &cri.PodSandboxStats{})
	text := string(f.appendTo(nil))
	const want = `# HELP container_network_receive_bytes_total Cumulative count of bytes received
# TYPE container_network_receive_bytes_total counter
container_network_receive_bytes_total{container="",id="sb",image="",interface="eth0",name="sb",namespace="ns",pod="web"} 10
container_network_receive_bytes_total{container="",id="sb",image="",interface="net1",name="sb",namespace="ns",pod="web"} 1
# HELP container_network_transmit_bytes_total Cumulative count of bytes transmitted
# TYPE container_network_transmit_bytes_total counter
container_network_transmit_bytes_total{container="",id="sb",image="",interface="eth0",name="sb",namespace="ns",pod="web"} 20
# HELP container_network_transmit_errors_total Cumulative count of errors encountered while transmitting
# TYPE container_network_transmit_errors_total counter
container_network_transmit_errors_total{container="",id="sb",image="",interface="eth0",name="sb",namespace="ns",pod="web"} 0
`
	if text != want {
		t.Error(text)
	}
}

// What only cAdvisor has: throttling of a container with a CPU limit, caches, block devices, packets.
func TestCounterFamilies(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
	limited := corev1.ContainerStatus{Name: "limited", Image: "im", Resources: &corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{limited, {Name: "free", Image: "im"}}
	f := families{}
	for _, name := range []string{"limited", "free"} {
		m := summary.Sample{Pod: pod, Container: name,
			Stats: &cri.ContainerStats{Attributes: &cri.ContainerAttributes{Id: name + "-id"}}}
		f.counters(m, containerLabels(m),
			&runtime.ContainerCounters{Periods: 10, ThrottledPeriods: 3, Throttled: 1500 * time.Millisecond,
				Cache: 4096, Mapped: 1024, Devices: []runtime.DeviceCounters{
					{Name: "/dev/vda", Reads: 1, Writes: 2, BytesRead: 512, BytesWritten: 1024}}})
	}
	f.packets(pod, "sb", []runtime.InterfaceCounters{
		{Name: "eth0", Received: 5, ReceivedDropped: 1, Transmitted: 6, TransmittedDropped: 2}})
	text := string(f.appendTo(nil))
	const (
		limitedLabels = `container="limited",id="limited-id",image="im",name="limited-id",namespace="ns",pod="web"`
		freeLabels    = `container="free",id="free-id",image="im",name="free-id",namespace="ns",pod="web"`
		packets       = `container="",id="sb",image="",interface="eth0",name="sb",namespace="ns",pod="web"`
	)
	for _, want := range []string{
		`container_cpu_cfs_periods_total{` + limitedLabels + `} 10`,
		`container_cpu_cfs_throttled_periods_total{` + limitedLabels + `} 3`,
		`container_cpu_cfs_throttled_seconds_total{` + limitedLabels + `} 1.5`,
		`container_memory_cache{` + freeLabels + `} 4096`,
		`container_memory_mapped_file{` + freeLabels + `} 1024`,
		`container_fs_reads_total{` + freeLabels + `,device="/dev/vda"} 1`,
		`container_fs_writes_total{` + freeLabels + `,device="/dev/vda"} 2`,
		`container_fs_reads_bytes_total{` + freeLabels + `,device="/dev/vda"} 512`,
		`container_fs_writes_bytes_total{` + freeLabels + `,device="/dev/vda"} 1024`,
		`container_network_receive_packets_total{` + packets + `} 5`,
		`container_network_receive_packets_dropped_total{` + packets + `} 1`,
		`container_network_transmit_packets_total{` + packets + `} 6`,
		`container_network_transmit_packets_dropped_total{` + packets + `} 2`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, `container_cpu_cfs_periods_total{container="free"`) {
		t.Error("a container without a limit is shown as throttled")
	}
}

type podList struct {
	Pods
	list []*corev1.Pod
}

func (l podList) List() []*corev1.Pod { return l.list }

type counterFunc func() runtime.Counters

func (f counterFunc) Counters(context.Context) runtime.Counters { return f() }

// A runtime with cAdvisor's metrics is called once for a page: it reads no file twice.
func TestScrapeCallsTheRuntimeOnce(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u1"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "carob://id1",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	calls := 0
	s := &Server{cfg: Config{Pods: podList{list: []*corev1.Pod{pod}}, Counter: counterFunc(func() runtime.Counters {
		calls++
		return runtime.Counters{
			Stats: []*cri.ContainerStats{{
				Attributes: &cri.ContainerAttributes{Id: "id1",
					Labels: map[string]string{"io.kubernetes.pod.uid": "u1", "io.kubernetes.container.name": "c"}},
				WritableLayer: &cri.FilesystemUsage{UsedBytes: &cri.UInt64Value{Value: 8192}}}},
			Sandboxes: []*cri.PodSandboxStats{{
				Attributes: &cri.PodSandboxAttributes{Id: "sb", Metadata: &cri.PodSandboxMetadata{Uid: "u1"}},
				Linux: &cri.LinuxPodSandboxStats{Network: &cri.NetworkUsage{
					DefaultInterface: &cri.NetworkInterfaceUsage{Name: "eth0",
						RxBytes: &cri.UInt64Value{Value: 10}}}}}},
			Interfaces: map[string][]runtime.InterfaceCounters{"sb": {{Name: "eth0", Received: 5}}},
		}
	})}} // without a Runtime: a call to it panics
	w := httptest.NewRecorder()
	s.cadvisorMetrics(w, httptest.NewRequest(http.MethodGet, "/metrics/cadvisor", nil))
	const packets = `{container="",id="sb",image="",interface="eth0",name="sb",namespace="ns",pod="web"}`
	for _, want := range []string{
		`container_fs_usage_bytes{container="c",id="id1",image="",name="id1",namespace="ns",pod="web",device=""} 8192`,
		`container_network_receive_bytes_total` + packets + ` 10`,
		`container_network_receive_packets_total` + packets + ` 5`,
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("%s is missing in\n%s", want, w.Body)
		}
	}
	if calls != 1 {
		t.Errorf("asked %d times", calls)
	}
}

// Whatever names a runtime, an image and a device have, Prometheus reads the same.
func TestLabelsAreReadAsTheyAre(t *testing.T) {
	for _, value := range []string{"", "plain", `a"b`, `back\slash`, `ends in \`, "two\nlines", `\n`, "tab\tand\x01", "déjà vu",
		`",pod="other`, "} 1\nup{} 0"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Image: value}}
		f := families{}
		m := summary.Sample{Pod: pod, Container: "c", Stats: &cri.ContainerStats{
			Attributes: &cri.ContainerAttributes{Id: value},
			WritableLayer: &cri.FilesystemUsage{FsId: &cri.FilesystemIdentifier{Mountpoint: value},
				UsedBytes: &cri.UInt64Value{Value: 1 << 40}}}}
		f.container(m, containerLabels(m), 7)
		f.packets(pod, value, []runtime.InterfaceCounters{{Name: value, Received: 5}})
		parser := expfmt.NewTextParser(model.UTF8Validation)
		read, err := parser.TextToMetricFamilies(bytes.NewReader(f.appendTo(nil)))
		if err != nil {
			t.Errorf("%q: %v", value, err)
			continue
		}
		for name, want := range map[string]map[string]string{
			"container_fs_usage_bytes": {"container": "c", "id": value, "image": value, "name": value, "namespace": "ns",
				"pod": "web", "device": value},
			"container_network_receive_packets_total": {"container": "", "id": value, "image": "", "interface": value,
				"name": value, "namespace": "ns", "pod": "web"},
		} {
			got := map[string]string{}
			list := read[name].GetMetric()
			if len(list) != 1 {
				t.Errorf("%q: %s has %d series", value, name, len(list))
				continue
			}
			for _, l := range list[0].GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			if !maps.Equal(got, want) {
				t.Errorf("%q: %s has %q", value, name, got)
			}
		}
		if v := read["container_fs_usage_bytes"].GetMetric(); len(v) == 1 && v[0].GetGauge().GetValue() != 1<<40 {
			t.Errorf("%q: %v", value, v)
		}
	}
}

// many is a node with pods of one container.
func many(pods int) *Server {
	n := func(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }
	counted := runtime.Counters{Containers: map[string]runtime.ContainerCounters{},
		Interfaces: map[string][]runtime.InterfaceCounters{}}
	var list []*corev1.Pod
	for i := range pods {
		uid, id := fmt.Sprint("uid-", i), fmt.Sprintf("%064d", i)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("web-", i), UID: types.UID(uid)}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "carob://" + id,
			Image: "localhost/bench:1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		list = append(list, pod)
		counted.Stats = append(counted.Stats, &cri.ContainerStats{
			Attributes: &cri.ContainerAttributes{Id: id,
				Labels: map[string]string{"io.kubernetes.pod.uid": uid, "io.kubernetes.container.name": "c"}},
			Cpu: &cri.CpuUsage{UsageCoreNanoSeconds: n(1)},
			Memory: &cri.MemoryUsage{UsageBytes: n(1 << 20), WorkingSetBytes: n(1 << 20), RssBytes: n(1 << 20),
				PageFaults: n(100), MajorPageFaults: n(1)},
			WritableLayer: &cri.FilesystemUsage{FsId: &cri.FilesystemIdentifier{Mountpoint: "/var/lib/carob"},
				UsedBytes: n(8192)},
		})
		counted.Containers[id] = runtime.ContainerCounters{
			Cache: 4096, Devices: []runtime.DeviceCounters{{Name: "/dev/vda"}}}
		counted.Sandboxes = append(counted.Sandboxes, &cri.PodSandboxStats{
			Attributes: &cri.PodSandboxAttributes{Id: "sb" + id, Metadata: &cri.PodSandboxMetadata{Uid: uid}},
			Linux: &cri.LinuxPodSandboxStats{Network: &cri.NetworkUsage{DefaultInterface: &cri.NetworkInterfaceUsage{
				Name: "eth0", RxBytes: n(10), RxErrors: n(0), TxBytes: n(10), TxErrors: n(0)}}}})
		counted.Interfaces["sb"+id] = []runtime.InterfaceCounters{{Name: "eth0", Received: 5}}
	}
	return &Server{cfg: Config{Pods: podList{list: list},
		Counter: counterFunc(func() runtime.Counters { return counted })}}
}

// A page does not contain what only an earlier page had, although it uses its memory.
func TestPageAfterPage(t *testing.T) {
	text := func(s *Server) string {
		w := httptest.NewRecorder()
		s.cadvisorMetrics(w, httptest.NewRequest(http.MethodGet, "/metrics/cadvisor", nil))
		return w.Body.String()
	}
	for _, pods := range []int{3, 1, 2, 0, 1} {
		page := text(many(pods))
		if n := strings.Count(page, "\ncontainer_memory_rss{"); n != pods {
			t.Errorf("%d series of %d pods", n, pods)
		}
		if heads := strings.Count(page, "# HELP container_"); (heads > 0) != (pods > 0) {
			t.Errorf("%d families of %d pods", heads, pods)
		}
	}
}

// discarded is a response that nobody keeps.
type discarded struct{ header http.Header }

func (d discarded) Header() http.Header         { return d.header }
func (d discarded) Write(b []byte) (int, error) { return len(b), nil }
func (d discarded) WriteHeader(int)             {}

// BenchmarkPage is a scrape of 100 pods without the runtime's part.
func BenchmarkPage(b *testing.B) {
	s := many(100)
	req := httptest.NewRequest(http.MethodGet, "/metrics/cadvisor", nil)
	b.ReportAllocs()
	for b.Loop() {
		s.cadvisorMetrics(discarded{http.Header{}}, req)
	}
}
