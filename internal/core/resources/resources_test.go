package resources

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func list(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

func container(requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

func podOf(containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: containers}}
}

// withInit adds init containers; a sidecar is one that restarts always.
func withInit(pod *corev1.Pod, sidecar bool, c corev1.Container) *corev1.Pod {
	if sidecar {
		always := corev1.ContainerRestartPolicyAlways
		c.RestartPolicy = &always
	}
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	return pod
}

func TestQoS(t *testing.T) { // L1.40
	full := list("cpu", "1", "memory", "1Gi")
	podLevel := func(requests, limits corev1.ResourceList) *corev1.Pod {
		p := podOf(container(nil, nil))
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: requests, Limits: limits}
		return p
	}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want corev1.PodQOSClass
	}{
		"nothing": {podOf(container(nil, nil)), corev1.PodQOSBestEffort},
		"zeroes": {podOf(container(list("cpu", "0"), list("memory", "0"))),
			corev1.PodQOSBestEffort},
		"only an extended resource": {podOf(container(nil, list("example.com/gpu", "1"))), corev1.PodQOSBestEffort},
		"all equal":                 {podOf(container(full, full)), corev1.PodQOSGuaranteed},
		"request below limit": {podOf(container(list("cpu", "500m", "memory", "1Gi"), full)),
			corev1.PodQOSBurstable},
		"memory unlimited":         {podOf(container(full, list("cpu", "1"))), corev1.PodQOSBurstable},
		"second container without": {podOf(container(full, full), container(nil, nil)), corev1.PodQOSBurstable},
		"init container without": {withInit(podOf(container(full, full)), false, container(nil, nil)),
			corev1.PodQOSBurstable},
		"pod level alone decides": {podLevel(full, full), corev1.PodQOSGuaranteed},
		"pod level requests only": {podLevel(full, nil), corev1.PodQOSBurstable},
		"different units, equal amount": {podOf(container(list("cpu", "1000m", "memory", "1024Mi"), full)),
			corev1.PodQOSGuaranteed},
	} {
		if got := ComputeQoS(test.pod); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	recorded := podOf(container(nil, nil))
	recorded.Status.QOSClass = corev1.PodQOSGuaranteed
	if got := QoS(recorded); got != corev1.PodQOSGuaranteed {
		t.Errorf("the recorded class takes precedence, got %s", got)
	}
}

func TestDemand(t *testing.T) { // L3.117i
	pod := podOf(container(list("cpu", "100m", "memory", "10Mi"), nil),
		container(list("cpu", "200m", "example.com/gpu", "2"), nil))
	withInit(pod, true, container(list("cpu", "50m", "memory", "5Mi"), nil))
	withInit(pod, false, container(list("cpu", "400m", "hugepages-2Mi", "4Mi"), nil))
	pod.Spec.Overhead = list("cpu", "10m")
	got := DemandOf(pod)
	want := Demand{
		// init step: sidecar 50m + init 400m beats 300m + 50m; memory 10Mi + 5Mi beats 5Mi.
		Amount: Amount{MilliCPU: 460, Memory: 15 << 20,
			Scalars: []Scalar{{"example.com/gpu", 2}, {"hugepages-2Mi", 4 << 20}}},
		// the second container and the init container name no memory: 200Mi each.
		ScoreMilliCPU: 460, ScoreMemory: 215 << 20,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDemandOfAResize(t *testing.T) { // L3.127a
	pod := podOf(container(list("cpu", "100m"), nil))
	pod.Spec.Containers[0].Name = "c"
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: list("cpu", "300m")}}
	if got := DemandOf(pod).MilliCPU; got != 300 {
		t.Errorf("shrinking, not yet actuated: %d, want the allocated 300", got)
	}
	pod.Spec.Containers[0].Resources.Requests = list("cpu", "900m")
	if got := DemandOf(pod).MilliCPU; got != 900 {
		t.Errorf("growing: %d, want the wanted 900", got)
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Reason: corev1.PodReasonInfeasible}}
	if got := DemandOf(pod).MilliCPU; got != 300 {
		t.Errorf("infeasible growth: %d, want the allocated 300", got)
	}
}

func ledger(allocatable corev1.ResourceList) *Ledger {
	l := &Ledger{}
	l.SetNode(&corev1.Node{Status: corev1.NodeStatus{Allocatable: allocatable}})
	return l
}

func TestFits(t *testing.T) { // L2.20, L3.20
	l := ledger(list("cpu", "1", "memory", "1Gi", "pods", "2", "example.com/gpu", "1"))
	l.Add(DemandOf(podOf(container(list("cpu", "800m", "example.com/gpu", "1"), nil))))
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want []Shortage
	}{
		"exactly":     {podOf(container(list("cpu", "200m", "memory", "1Gi"), nil)), nil},
		"no requests": {podOf(container(nil, nil)), nil},
		"two short": {
			podOf(container(list("cpu", "300m", "memory", "2Gi"), nil)),
			[]Shortage{{"cpu", 300, 800, 1000}, {"memory", 2 << 30, 0, 1 << 30}},
		},
		"scalars": {
			podOf(container(list("example.com/gpu", "1", "example.com/tpu", "1", "ephemeral-storage", "1"), nil)),
			[]Shortage{{"ephemeral-storage", 1, 0, 0}, {"example.com/gpu", 1, 1, 1}, {"example.com/tpu", 1, 0, 0}},
		},
	} {
		d := DemandOf(test.pod)
		if diff := cmp.Diff(test.want, Fits(l, d)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if FitsNow(l, d) != (test.want == nil) {
			t.Errorf("%s: FitsNow disagrees with Fits", name)
		}
	}
	l.Add(DemandOf(podOf(container(nil, nil))))
	want := []Shortage{{"pods", 1, 2, 2}}
	if diff := cmp.Diff(want, Fits(l, Demand{})); diff != "" {
		t.Errorf("full node: %s", diff)
	}
	overcommitted := ledger(list("cpu", "1", "pods", "9"))
	overcommitted.Add(Demand{Amount: Amount{MilliCPU: 2000}})
	if short := Fits(overcommitted, Demand{}); short != nil {
		t.Errorf("a pod without requests fits an overcommitted node, got %v", short)
	}
}

func genDemand(t *rapid.T) Demand {
	d := Demand{Amount: Amount{
		MilliCPU: rapid.Int64Range(0, 2000).Draw(t, "cpu"),
		Memory:   rapid.Int64Range(0, 1<<31).Draw(t, "memory"),
	}}
	for _, name := range []corev1.ResourceName{"example.com/a", "example.com/b"} {
		if rapid.Bool().Draw(t, string(name)) {
			d.Scalars = append(d.Scalars, Scalar{name, rapid.Int64Range(0, 4).Draw(t, "n")})
		}
	}
	return d
}

func TestLedgerProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := ledger(list("cpu", "4", "memory", "4Gi", "pods", "5", "example.com/a", "3"))
		var in []Demand
		for range rapid.IntRange(0, 8).Draw(t, "pods") {
			d := genDemand(t)
			if (Fits(l, d) == nil) != FitsNow(l, d) {
				t.Fatalf("FitsNow disagrees with Fits for %+v", d)
			}
			before := l.Clone()
			l.Add(d)
			in = append(in, d)
			if diff := cmp.Diff(before.Pods, l.Pods-1); diff != "" {
				t.Fatal(diff)
			}
			if s := LeastAllocated(l, d, []Weighted{{"cpu", 1}, {"memory", 1}}); s < 0 || s > 100 {
				t.Fatalf("score %d", s)
			}
			if s := Balanced(l, d, []Weighted{{"cpu", 1}, {"memory", 1}}); s < 0 || s > 100 {
				t.Fatalf("score %d", s)
			}
		}
		for _, d := range in {
			l.Remove(d)
		}
		for _, s := range l.Used.Scalars {
			if s.Value != 0 {
				t.Fatalf("left over: %v", s)
			}
		}
		if l.Used.MilliCPU != 0 || l.Used.Memory != 0 || l.Pods != 0 {
			t.Fatalf("left over: %+v", l.Used)
		}
	})
}

func TestCPUNumbers(t *testing.T) { // L3.117a–c
	for _, test := range []struct {
		milli  int64
		shares uint64
		quota  int64
		weight uint64
	}{
		{0, 2, 0, 1},
		{1, 2, 1000, 1},
		{10, 10, 1000, 1},
		{100, 102, 10_000, 4},
		{500, 512, 50_000, 20},
		{1000, 1024, 100_000, 39},
		{4000, 4096, 400_000, 157},
		{1 << 20, 262144, 104_857_600, 10000},
	} {
		shares := CPUShares(test.milli)
		if shares != test.shares || CPUQuota(test.milli) != test.quota || CPUWeight(shares) != test.weight {
			t.Errorf("%dm: shares %d quota %d weight %d, want %+v", test.milli, shares, CPUQuota(test.milli),
				CPUWeight(shares), test)
		}
	}
}

func TestPodCgroup(t *testing.T) { // L3.117e–g, n
	full := list("cpu", "1", "memory", "1Gi")
	half := list("cpu", "500m", "memory", "512Mi")
	podLimited := podOf(container(half, nil), container(nil, nil))
	podLimited.Spec.Resources = &corev1.ResourceRequirements{Requests: half, Limits: list("cpu", "2", "memory", "2Gi")}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want Cgroup
	}{
		"besteffort": {podOf(container(nil, nil)), Cgroup{CPUShares: 2}},
		"guaranteed": {podOf(container(full, full)),
			Cgroup{CPUShares: 1024, CPUQuota: 100_000, Memory: 1 << 30}},
		"burstable, all limited": {podOf(container(half, full)),
			Cgroup{CPUShares: 512, CPUQuota: 100_000, Memory: 1 << 30}},
		"burstable, one unlimited": {podOf(container(half, full), container(nil, list("cpu", "1"))),
			Cgroup{CPUShares: 512, CPUQuota: 200_000}},
		"pod-level limit": {podLimited, Cgroup{CPUShares: 512, CPUQuota: 200_000, Memory: 2 << 30}},
		"hugepages": {
			podOf(container(nil, list("hugepages-2Mi", "4Mi", "hugepages-1Gi", "1Gi", "memory", "1Gi"))),
			Cgroup{CPUShares: 2, Memory: 1 << 30, HugePages: []HugePage{{"1Gi", 1 << 30}, {"2Mi", 4 << 20}}},
		},
	} {
		if diff := cmp.Diff(test.want, PodCgroup(test.pod)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	got := ContainerCgroup(podLimited, &podLimited.Spec.Containers[1])
	if diff := cmp.Diff(Cgroup{CPUShares: 2, CPUQuota: 200_000, Memory: 2 << 30}, got); diff != "" {
		t.Errorf("L3.117j: %s", diff)
	}
	limitOnly := podOf(container(nil, list("cpu", "250m")))
	if got := ContainerCgroup(limitOnly, &limitOnly.Spec.Containers[0]).CPUShares; got != 256 {
		t.Errorf("without a request the limit counts: shares %d, want 256", got)
	}
}

func TestCgroupPath(t *testing.T) { // L3.117d
	for _, test := range []struct {
		class             corev1.PodQOSClass
		cgroupfs, systemd string
	}{
		{corev1.PodQOSGuaranteed, "/kubepods/poda-b", "kubepods-poda_b.slice"},
		{corev1.PodQOSBurstable, "/kubepods/burstable/poda-b", "kubepods-burstable-poda_b.slice"},
		{corev1.PodQOSBestEffort, "/kubepods/besteffort/poda-b", "kubepods-besteffort-poda_b.slice"},
	} {
		p := PodCgroupPath(test.class, "a-b")
		if p.Cgroupfs() != test.cgroupfs || p.Systemd() != test.systemd {
			t.Errorf("%s: %s %s", test.class, p.Cgroupfs(), p.Systemd())
		}
	}
}

func TestOOMScoreAdj(t *testing.T) { // L3.119
	const gi = int64(1) << 30
	full := list("cpu", "1", "memory", "1Gi")
	critical := podOf(container(nil, nil))
	priority := int32(2_000_001_000)
	critical.Spec.Priority, critical.Spec.PriorityClassName = &priority, "system-node-critical"
	shared := podOf(container(list("memory", "1Gi"), nil), container(nil, nil))
	shared.Spec.Resources = &corev1.ResourceRequirements{Requests: list("memory", "5Gi")}
	sidecar := withInit(podOf(container(list("memory", "5Gi"), nil), container(list("memory", "2Gi"), nil)), true,
		container(list("memory", "1Gi"), nil))
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		c    func(*corev1.Pod) *corev1.Container
		want int64
	}{
		"node critical":      {critical, nil, -997},
		"guaranteed":         {podOf(container(full, full)), nil, -997},
		"besteffort":         {podOf(container(nil, nil)), nil, 1000},
		"a tenth":            {podOf(container(full, nil)), nil, 900},
		"next to nothing":    {podOf(container(list("cpu", "1m"), nil)), nil, 999},
		"more than there is": {podOf(container(list("memory", "20Gi"), nil)), nil, 3},
		"part of the pod's":  {shared, nil, 1000 - 300},
		"sidecar like a main": {sidecar, func(p *corev1.Pod) *corev1.Container { return &p.Spec.InitContainers[0] },
			800},
	} {
		c := &test.pod.Spec.Containers[0]
		if test.c != nil {
			c = test.c(test.pod)
		}
		if got := OOMScoreAdj(test.pod, c, 10*gi); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestLimitedSwap(t *testing.T) { // L3.117l
	burstable := podOf(container(list("memory", "1Gi"), list("memory", "2Gi")))
	if got := LimitedSwap(burstable, &burstable.Spec.Containers[0], 4<<30, 8<<30); got != 2<<30 {
		t.Errorf("%d, want a quarter of the swap", got)
	}
	equal := podOf(container(list("memory", "1Gi"), list("memory", "1Gi")))
	if got := LimitedSwap(equal, &equal.Spec.Containers[0], 4<<30, 8<<30); got != 0 {
		t.Errorf("request equals limit: %d, want none", got)
	}
}

// L0.63: an annotation alone, which the author of a pod can set, makes no pod static, and so critical.
func TestIsStatic(t *testing.T) {
	for _, tt := range []struct {
		uid    types.UID
		source string
		want   bool
	}{
		{"0123456789abcdef0123456789abcdef", "file", true},
		{"0123456789abcdef0123456789abcdef", "http", true},
		{"0123456789abcdef0123456789abcdef", "api", false},
		{"7d0b2c0e-6d0b-4c0e-8d0b-2c0e6d0b4c0e", "file", false},
		{"7d0b2c0e-6d0b-4c0e-8d0b-2c0e6d0b4c0e", "api", false},
	} {
		pod := &corev1.Pod{}
		pod.UID, pod.Annotations = tt.uid, map[string]string{"kubernetes.io/config.source": tt.source}
		if IsStatic(pod) != tt.want || IsCritical(pod) != tt.want {
			t.Errorf("pod %s of source %s: static %v, critical %v", tt.uid, tt.source, IsStatic(pod), IsCritical(pod))
		}
	}
}
