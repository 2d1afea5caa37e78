package summary

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/node/csi"
)

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The names and forms of the figures of a pod (S12.40, S12.41).
func TestPodStats(t *testing.T) {
	n := func(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }
	eth0 := &cri.NetworkInterfaceUsage{Name: "eth0", RxBytes: n(1), RxErrors: n(2), TxBytes: n(3), TxErrors: n(4)}
	net1 := &cri.NetworkInterfaceUsage{Name: "net1", RxBytes: n(5)}
	for name, tc := range map[string]struct {
		got  any
		want string
	}{
		"network": {networkOf(&cri.NetworkUsage{Timestamp: 1e9, DefaultInterface: eth0,
			Interfaces: []*cri.NetworkInterfaceUsage{eth0, net1}}),
			`{"time":"1970-01-01T00:00:01Z","name":"eth0","rxBytes":1,"rxErrors":2,"txBytes":3,"txErrors":4,` +
				`"interfaces":[{"name":"eth0","rxBytes":1,"rxErrors":2,"txBytes":3,"txErrors":4},` +
				`{"name":"net1","rxBytes":5}]}`},
		"processes": {processesOf(&cri.ProcessUsage{ProcessCount: n(3)}), `{"process_count":3}`},
		"nothing":   {Pod{Network: networkOf(nil), Processes: processesOf(nil)}.Network, `null`},
		"block device": {reported(&csi.Stats{Namespace: "ns", Claim: "b", Capacity: 7, Used: -1, Available: -1,
			Inodes: -1, InodesUsed: -1, InodesFree: -1, At: time.Unix(1, 0).UTC()}),
			`{"time":"1970-01-01T00:00:01Z","capacityBytes":7,"name":"","pvcRef":{"name":"b","namespace":"ns"}}`},
	} {
		text := asJSON(t, tc.got)
		if network, ok := tc.got.(*Network); ok && network != nil {
			network.Time = network.Time.UTC()
			text = asJSON(t, network)
		}
		if text != tc.want {
			t.Errorf("%s: %s", name, cmp.Diff(tc.want, text))
		}
	}
}

// What is not limited has no available memory; zero is a value where there is a limit (S12.43).
func TestAvailableMemory(t *testing.T) {
	m := &cri.MemoryUsage{AvailableBytes: &cri.UInt64Value{}}
	if got := memoryOf(m, false).AvailableBytes; got != nil {
		t.Errorf("without a limit: %d", *got)
	}
	if got := memoryOf(m, true).AvailableBytes; got == nil || *got != 0 {
		t.Errorf("with a limit: %v", got)
	}
}

// A container without a limit of its own has that of its pod, and a pod has one if all its containers do.
func TestMemoryLimits(t *testing.T) {
	limit := corev1.ResourceRequirements{Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}
	free := corev1.Container{Name: "free"}
	capped := corev1.Container{Name: "capped", Resources: limit}
	for name, tc := range map[string]struct {
		spec              corev1.PodSpec
		free, capped, pod bool
	}{
		"of a container": {corev1.PodSpec{Containers: []corev1.Container{free, capped}}, false, true, false},
		"of each":        {corev1.PodSpec{Containers: []corev1.Container{capped}}, false, true, true},
		"of an init one": {corev1.PodSpec{InitContainers: []corev1.Container{capped}}, false, true, true},
		"of the whole pod": {corev1.PodSpec{Containers: []corev1.Container{free}, Resources: &limit},
			true, false, true},
	} {
		pod := &corev1.Pod{Spec: tc.spec}
		samples := []Sample{{Pod: pod, Container: "free"}, {Pod: pod, Container: "capped"}}
		for i := range samples {
			samples[i].Stats = &cri.ContainerStats{Memory: &cri.MemoryUsage{AvailableBytes: &cri.UInt64Value{}}}
		}
		s := New(Config{})
		got := s.Brief(samples, map[string]*cri.PodSandboxStats{"": {Linux: &cri.LinuxPodSandboxStats{
			Memory: &cri.MemoryUsage{AvailableBytes: &cri.UInt64Value{}}}}}).Pods[0]
		s.Close()
		for i, want := range []bool{tc.free, tc.capped} {
			if c := got.Containers[i]; (c.Memory.AvailableBytes != nil) != want {
				t.Errorf("limit %s: %s has available memory: %v", name, c.Name, !want)
			}
		}
		if (got.Memory.AvailableBytes != nil) != tc.pod {
			t.Errorf("limit %s: the pod has available memory: %v", name, !tc.pod)
		}
	}
}

// Pressure, I/O and swap are those that the runtime reports; a runtime without them leaves them out.
func TestPressureAndSwap(t *testing.T) {
	psi := &cri.PsiStats{Full: &cri.PsiData{Total: 1, Avg10: 2}, Some: &cri.PsiData{Avg60: 3, Avg300: 4}}
	const want = `{"full":{"total":1,"avg10":2,"avg60":0,"avg300":0},` +
		`"some":{"total":0,"avg10":0,"avg60":3,"avg300":4}}`
	if got := asJSON(t, cpuOf(&cri.CpuUsage{Psi: psi}).PSI); got != want {
		t.Error(cmp.Diff(want, got))
	}
	if got := ioOf(&cri.IoUsage{Psi: psi}); got == nil || asJSON(t, got.PSI) != want {
		t.Error("no I/O")
	}
	if ioOf(&cri.IoUsage{}) != nil || ioOf(nil) != nil || swapOf(nil) != nil || psiOf(nil) != nil {
		t.Error("there are values that nobody reported")
	}
	n := func(v uint64) *uint64 { return &v }
	sum := swapOfAll([]Container{{}, {Swap: &Swap{Time: time.Unix(2, 0), UsageBytes: n(3)}},
		{Swap: &Swap{Time: time.Unix(1, 0), UsageBytes: n(4), AvailableBytes: n(5)}}})
	if *sum.UsageBytes != 7 || *sum.AvailableBytes != 5 || sum.Time.Unix() != 2 || swapOfAll([]Container{{}}) != nil {
		t.Errorf("%+v", sum)
	}
}

// A rate needs two samples that are some time apart; a counter that begins anew has none (S12.44).
func TestRates(t *testing.T) {
	var r rates
	start := time.Unix(1000, 0)
	for i, step := range []struct {
		after time.Duration
		usage uint64
		want  int64 // -1: none
	}{
		{0, 1e9, -1}, {time.Second / 2, 2e9, -1}, {2 * time.Second, 3e9, 1e9}, {2500 * time.Millisecond, 9e9, 1e9},
		{4 * time.Second, 4e9, 5e8}, {5 * time.Second, 1e9, -1}, {7 * time.Second, 2e9, 5e8}, {time.Hour, 3e9, -1},
		{8 * time.Second, 4e9, -1}, {10 * time.Second, 6e9, 1e9}, // the clock was set back
	} {
		c := &CPU{Time: start.Add(step.after), UsageCoreNanoSeconds: &step.usage}
		r.fill("a", c)
		got := int64(-1)
		if c.UsageNanoCores != nil {
			got = int64(*c.UsageNanoCores)
		}
		if got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
	own := uint64(5)
	c := &CPU{Time: start, UsageCoreNanoSeconds: &own, UsageNanoCores: &own}
	r.fill("a", c)
	r.fill("b", nil)
	if *c.UsageNanoCores != 5 {
		t.Error("the rate of the runtime is replaced")
	}
	r.fill("set back", &CPU{Time: start.Add(5 * time.Hour), UsageCoreNanoSeconds: &own})
	r.sweep(start.Add(2 * time.Hour))
	if len(r.known) != 0 {
		t.Errorf("kept for ever: %v", r.known)
	}
}
