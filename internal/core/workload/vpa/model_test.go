package vpa

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var here = Name{"ns", "v"}

// feed adds one sample of each container of pods to a model.
func feed(m *Model, pods []*corev1.Pod, at time.Time, cpu, memory int64) {
	for _, p := range pods {
		for i := range p.Spec.Containers {
			m.AddSample(Sample{Name{p.Namespace, p.Name}, p.Spec.Containers[i].Name, at, cpu, memory}, at)
		}
	}
}

func recommended(t *testing.T, m *Model, now time.Time) (cpu, memory int64) {
	t.Helper()
	s, err := m.Recommend(here, now)
	if err != nil {
		t.Fatal(err)
	}
	c := s.Recommendation.Containers[0]
	return c.Target.Cpu().MilliValue(), c.Target.Memory().Value()
}

// The recommendation follows a change of usage within the days that the half-life implies.
func TestConverges(t *testing.T) {
	m, pods := NewModel(), []*corev1.Pod{podOf("p", 1, 0)}
	m.SetTargets(targetOf(autoscaler()))
	at := traceStart
	run := func(d time.Duration, cpu, memory int64) {
		for end := at.Add(d); at.Before(end); at = at.Add(Pass) {
			m.SetPods(pods, at)
			feed(m, pods, at, cpu, memory)
		}
	}
	within := func(what string, got, want int64) {
		t.Helper()
		first := 10.0 // width of the first bucket
		if want > 1<<20 {
			first = 1e7
		}
		// Each bucket is 5 % wider, and its upper border is used; the margin is added.
		if low, high := float64(want)*1.15, (float64(want)*1.05+first)*1.15; float64(got) < low || float64(got) > high {
			t.Errorf("%s: %d, want %.0f to %.0f", what, got, low, high)
		}
	}
	run(3*24*time.Hour, 200, 400<<20)
	cpu, memory := recommended(t, m, at)
	within("steady processor time", cpu, 200)
	within("steady memory", memory, 400<<20)
	run(5*time.Hour, 2000, 900<<20)
	if cpu, memory = recommended(t, m, at); true {
		within("processor time soon after it grew", cpu, 2000) // a tenth of the weight is enough
		within("memory, whose peak counts at once", memory, 900<<20)
	}
	run(7*24*time.Hour, 200, 400<<20)
	cpu, memory = recommended(t, m, at)
	within("processor time that fell", cpu, 200)
	within("memory that fell", memory, 400<<20)
}

// W9.3, W9.32, W9.33, W9.75: the policy limits target and bounds, not the uncapped target; it excludes resources and
// containers, and init containers have no recommendation. The containers are sorted by name.
func TestPolicies(t *testing.T) {
	pod := podOf("p", 4, 0)
	pod.Spec.InitContainers = []corev1.Container{{Name: "init"}}
	m := NewModel()
	v := autoscaler(func(v *VerticalPodAutoscaler) {
		v.Spec.ResourcePolicy = &ResourcePolicy{ContainerPolicies: []ContainerPolicy{
			{ContainerName: "c0", MinAllowed: list("3", ""), MaxAllowed: list("", "300Mi")},
			{ContainerName: "c1", Mode: new(ScalingOff)},
			{ContainerName: "c2", ControlledResources: &[]corev1.ResourceName{corev1.ResourceMemory}},
			{ContainerName: "*", MaxAllowed: list("100m", "")},
		}}
	})
	m.SetTargets(targetOf(v))
	m.SetPods([]*corev1.Pod{pod}, traceStart)
	for _, c := range []string{"c3", "init", "c1", "c2", "c0"} {
		m.AddSample(Sample{Pod: Name{Namespace: "ns", Name: "p"}, Container: c, At: traceStart, CPU: 200,
			Memory: 400 << 20}, traceStart)
	}
	status, err := m.Recommend(here, traceStart.Add(Pass))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range status.Recommendation.Containers {
		line := c.ContainerName
		for _, l := range []corev1.ResourceList{c.LowerBound, c.Target, c.UpperBound, c.UncappedTarget} {
			line += " "
			for _, name := range slices.Sorted(maps.Keys(l)) {
				q := l[name]
				line += fmt.Sprintf("/%s=%s", name, q.String())
			}
		}
		got = append(got, line)
	}
	want := []string{
		"c0 /cpu=3/memory=87381333 /cpu=3/memory=300Mi /cpu=100G/memory=300Mi /cpu=247m/memory=511772986",
		"c2 /memory=87381333 /memory=511772986 /memory=97656250000Ki /memory=511772986",
		"c3 /cpu=8m/memory=87381333 /cpu=100m/memory=511772986 /cpu=100m/memory=97656250000Ki /cpu=247m/memory=511772986",
	}
	if !slices.Equal(got, want) {
		t.Errorf("recommended\n%s", strings.Join(got, "\n"))
	}
}

// W9.27: a kill counts as more memory than was used; each kill counts once, and a second one does
// not raise it further.
func TestOOMKills(t *testing.T) {
	m, pods := NewModel(), []*corev1.Pod{podOf("p", 1, 1<<30)}
	m.SetTargets(targetOf(autoscaler()))
	m.SetPods(pods, traceStart)
	feed(m, pods, traceStart, 10, 900<<20)
	_, before := recommended(t, m, traceStart)
	killed(pods[0], traceStart.Add(time.Minute))
	for range 3 {
		m.SetPods(pods, traceStart.Add(2*time.Minute))
	}
	_, after := recommended(t, m, traceStart)
	if want := int64(1<<30) / 100 * 138; before >= want || after < want || float64(after) > float64(want)*1.06 {
		t.Errorf("after a kill at 1Gi: %d, before it %d", after, before)
	}
	killed(pods[0], traceStart.Add(5*time.Minute))
	m.SetPods(pods, traceStart.Add(6*time.Minute))
	if _, again := recommended(t, m, traceStart); again != after {
		t.Errorf("a second kill: %d, the first %d", again, after)
	}
	// An old kill before the first observation does not count.
	m = NewModel()
	m.SetTargets(targetOf(autoscaler()))
	m.SetPods(pods, traceStart.Add(30*time.Hour))
	if _, old := recommended(t, m, traceStart); old != leastMemory {
		t.Errorf("an old kill: %d", old)
	}
	// An eviction for memory counts as a kill.
	e := &corev1.Event{Reason: Evicted, InvolvedObject: corev1.ObjectReference{Kind: "Pod"}}
	e.Annotations = map[string]string{"starved_resource": "memory", "offending_containers": "c0,,c1",
		"offending_containers_usage": "2Gi,1Gi,much"}
	used := EvictedForMemory(e)
	if len(used) != 1 || used["c0"] != 2<<30 {
		t.Errorf("evicted: %v", used)
	}
	m.AddEviction(Name{"ns", "p"}, "c0", used["c0"], traceStart.Add(31*time.Hour), traceStart.Add(31*time.Hour))
	m.AddEviction(Name{"ns", "other"}, "c0", 1, traceStart, traceStart)
	if _, got := recommended(t, m, traceStart); got < 2<<30 {
		t.Errorf("after an eviction at 2Gi: %d", got)
	}
}

// W9.38: usage without samples for eight days is removed; its checkpoints remain.
func TestExpiredUsageIsRemoved(t *testing.T) {
	m, pods := NewModel(), []*corev1.Pod{podOf("p", 2, 0)}
	m.SetTargets(targetOf(autoscaler()))
	m.SetPods(pods, traceStart)
	feed(m, pods, traceStart, 10, 1)
	m.Collect(traceStart.Add(7 * 24 * time.Hour))
	if m.Usages() != 2 {
		t.Errorf("%d usages after a week", m.Usages())
	}
	m.Collect(traceStart.Add(8*24*time.Hour + time.Hour))
	if m.Usages() != 0 {
		t.Errorf("%d usages after eight days", m.Usages())
	}
}

// W9.34: conditions, and when they changed.
func TestConditions(t *testing.T) {
	v := autoscaler()
	m := NewModel()
	show := func(now time.Time) string {
		t.Helper()
		s, err := m.Recommend(here, now)
		if err != nil {
			t.Fatal(err)
		}
		v.Status = s
		var out []string
		for _, c := range s.Conditions {
			out = append(out, fmt.Sprintf("%s=%s since %v %s: %s", c.Type, c.Status,
				c.LastTransitionTime.Sub(traceStart).Round(time.Second), c.Reason, c.Message))
		}
		return strings.Join(out, "\n")
	}
	expect := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
		}
	}
	m.SetTargets([]Target{{VPA: v, Problem: "Cannot read targetRef. Reason: Deployment ns/d does not exist"}})
	m.SetPods(nil, traceStart)
	expect("without a target", show(traceStart),
		"ConfigUnsupported=True since 0s : Cannot read targetRef. Reason: Deployment ns/d does not exist\n"+
			"NoPodsMatched=True since 0s NoPodsMatched: No pods match this VPA object\n"+
			"RecommendationProvided=False since 0s NoPodsMatched: No pods match this VPA object")
	expect("without a target, later", show(traceStart.Add(time.Minute)),
		"ConfigUnsupported=True since 0s : Cannot read targetRef. Reason: Deployment ns/d does not exist\n"+
			"NoPodsMatched=True since 0s NoPodsMatched: No pods match this VPA object\n"+
			"RecommendationProvided=False since 0s NoPodsMatched: No pods match this VPA object")
	m.SetTargets(targetOf(v))
	expect("without pods", show(traceStart.Add(2*time.Minute)),
		"NoPodsMatched=True since 0s NoPodsMatched: No pods match this VPA object\n"+
			"RecommendationProvided=False since 0s NoPodsMatched: No pods match this VPA object")
	m.SetPods([]*corev1.Pod{podOf("p", 1, 0)}, traceStart)
	expect("with a pod", show(traceStart.Add(3*time.Minute)), "RecommendationProvided=True since 3m0s : ")
	m.SetPods(nil, traceStart)
	// W9.35: the usage of deleted pods is still used for recommendations.
	expect("without its pod", show(traceStart.Add(4*time.Minute)),
		"NoPodsMatched=True since 4m0s NoPodsMatched: No pods match this VPA object\n"+
			"RecommendationProvided=True since 3m0s : ")
}

// A restart does not change the state: checkpoints contain it, including current windows.
func TestRestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, v := NewModel(), autoscaler()
		m.SetTargets(targetOf(v))
		at := traceStart
		var pods []*corev1.Pod
		made := 0
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				pods = append(pods, podOf(fmt.Sprintf("p%d", made), 2, 300<<20))
				made++
			case 1:
				if len(pods) > 0 {
					pods = pods[1:]
				}
			case 2:
				if len(pods) > 0 {
					killed(pods[len(pods)-1], at)
				}
			case 3:
				at = at.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "hours")) * time.Hour)
			case 4:
				m = restarted(t, m, v, at)
				m.SetPods(pods, at)
			}
			m.SetPods(pods, at)
			for range rapid.IntRange(1, 30).Draw(t, "minutes") {
				at = at.Add(Pass)
				cpu, memory := rapid.Int64Range(0, 5000).Draw(t, "cpu"), rapid.Int64Range(0, 1<<33).Draw(t, "memory")
				feed(m, pods, at, cpu, memory)
			}
		}
		before := m.used(m.targets[here])
		after := restarted(t, m, v, at)
		after.SetPods(pods, at)
		got := after.used(after.targets[here])
		if len(before) != len(got) {
			t.Fatalf("containers: %d, before the restart %d", len(got), len(before))
		}
		for name, u := range before {
			expectSameShares(t, name+" cpu", u.cpu, got[name].cpu)
			expectSameShares(t, name+" memory", u.memory, got[name].memory)
			if u.samples != got[name].samples || u.last.Sub(got[name].last).Abs() > time.Second {
				t.Fatalf("%s: %d samples until %v, before the restart %d until %v", name, got[name].samples,
					got[name].last, u.samples, u.last)
			}
		}
		// The next checkpoints are those of a recommender that never stopped.
		a, b := m.Checkpoints(here, at), after.Checkpoints(here, at)
		for i := range a {
			if a[i].Annotations[OpenWindows] != b[i].Annotations[OpenWindows] {
				t.Fatalf("open windows\n%s\nbefore the restart\n%s", b[i].Annotations, a[i].Annotations)
			}
		}
	})
}

// restarted returns a model that is restored from the checkpoints of another.
func restarted(t *rapid.T, m *Model, v *VerticalPodAutoscaler, at time.Time) *Model {
	out := NewModel()
	out.SetTargets(targetOf(v))
	for _, c := range m.Checkpoints(here, at) {
		text, err := json.Marshal(&c)
		if err != nil {
			t.Fatal(err)
		}
		var stored Checkpoint
		if err := json.Unmarshal(text, &stored); err != nil {
			t.Fatal(err)
		}
		if err := out.Load(&stored, at); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// expectSameShares compares shares of the weight; a checkpoint rounds each to a ten-thousandth of the largest.
func expectSameShares(t *rapid.T, what string, a, b *histogram) {
	x, y := newHistogram(a.scale), newHistogram(b.scale)
	x.merge(a)
	y.merge(b)
	y.merge(newHistogram(b.scale))
	if math.Abs(x.total-y.total*math.Exp2(float64(y.reference.Sub(x.reference))/float64(halfLife))) > 0.01*x.total {
		t.Fatalf("%s: weight %v, before the restart %v", what, y.total, x.total)
	}
	for i := range x.weights {
		if d := math.Abs(x.weights[i]/math.Max(x.total, least) - y.weights[i]/math.Max(y.total, least)); d > 0.01 {
			t.Fatalf("%s: bucket %d has %v of %v, before the restart %v of %v", what, i, y.weights[i], y.total,
				x.weights[i], x.total)
		}
	}
}

// Invalid checkpoints are refused, and the others are loaded.
func TestInvalidCheckpoints(t *testing.T) {
	m := NewModel()
	m.SetTargets(targetOf(autoscaler()))
	good := func() *Checkpoint {
		u := newUsage(traceStart)
		u.addCPU(100, traceStart)
		return &Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v-c"},
			Spec: CheckpointSpec{VPAObjectName: "v", ContainerName: "c"},
			Status: CheckpointStatus{Version: "v3", CPUHistogram: u.cpu.save(), MemoryHistogram: u.memory.save(),
				TotalSamplesCount: 1}}
	}
	if err := m.Load(good(), traceStart); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*Checkpoint){
		"another autoscaler": func(c *Checkpoint) { c.Spec.VPAObjectName = "w" },
		"another namespace":  func(c *Checkpoint) { c.Namespace = "other" },
		"version":            func(c *Checkpoint) { c.Status.Version = "v4" },
		"no number":          func(c *Checkpoint) { c.Status.CPUHistogram.TotalWeight = math.NaN() },
		"endless":            func(c *Checkpoint) { c.Status.MemoryHistogram.TotalWeight = math.Inf(1) },
		"negative":           func(c *Checkpoint) { c.Status.MemoryHistogram.TotalWeight = -1 },
		"bucket":             func(c *Checkpoint) { c.Status.CPUHistogram.BucketWeights = map[int]uint32{100000: 1} },
		"negative bucket":    func(c *Checkpoint) { c.Status.CPUHistogram.BucketWeights = map[int]uint32{-1: 1} },
		"samples":            func(c *Checkpoint) { c.Status.TotalSamplesCount = -1 },
		"future": func(c *Checkpoint) {
			c.Status.CPUHistogram.ReferenceTimestamp = metav1.NewTime(traceStart.AddDate(100, 0, 0))
		},
		"windows": func(c *Checkpoint) { c.Annotations = map[string]string{OpenWindows: "{"} },
	} {
		c := good()
		change(c)
		if err := m.Load(c, traceStart); err == nil {
			t.Errorf("%s: it is loaded", what)
		}
	}
	c := good()
	c.Annotations = map[string]string{OpenWindows: `{"p":{"end":"9999-01-01T00:00:00Z","usage":1},"q":{"usage":-1}}`}
	if err := m.Load(c, traceStart); err != nil || len(m.targets[here].open["c"]) != 0 {
		t.Errorf("invalid windows: %v, %v", err, m.targets[here].open)
	}
}

// Autoscalers and containers that would have the same checkpoint name have different checkpoints.
func TestCheckpointNames(t *testing.T) {
	taken := map[string]CheckpointSpec{}
	long := strings.Repeat("v", 253)
	for _, s := range []CheckpointSpec{{"a", "b-c"}, {"a-b", "c"}, {long, "c"}, {long, "d"}, {"v", "main"}} {
		name := CheckpointName(s, func(name string) bool { o, there := taken[name]; return there && o != s })
		if _, there := taken[name]; there || len(name) > 253 {
			t.Errorf("%v is named %q, as %v", s, name, taken[name])
		}
		taken[name] = s
	}
	if taken["v-main"] != (CheckpointSpec{"v", "main"}) {
		t.Errorf("names: %v", taken)
	}
}

// An autoscaler that was deleted and created again, and one whose selector changes.
func TestChangedTargets(t *testing.T) {
	m, v := NewModel(), autoscaler()
	m.SetTargets(targetOf(v))
	u := newUsage(traceStart)
	u.addCPU(5000, traceStart)
	c := &Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: CheckpointSpec{"v", "c"},
		Status: CheckpointStatus{Version: "v3", CPUHistogram: u.cpu.save(), TotalSamplesCount: 1}}
	if err := m.Load(c, traceStart); err != nil {
		t.Fatal(err)
	}
	m.SetTargets([]Target{{VPA: v, Problem: "gone"}})
	if cpu, _ := recommended(t, m, traceStart); cpu < 5000 {
		t.Errorf("with the target gone: %d", cpu)
	}
	w := autoscaler(func(v *VerticalPodAutoscaler) { v.UID = types.UID("w") })
	m.SetTargets(targetOf(w))
	if s, err := m.Recommend(here, traceStart); err != nil || len(s.Recommendation.Containers) != 0 {
		t.Errorf("another of the same name: %v %v", s.Recommendation, err)
	}
	m.SetTargets(nil)
	if _, err := m.Recommend(here, traceStart); err == nil {
		t.Error("a status for a deleted autoscaler")
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(`{"status":{"version":"v3","cpuHistogram":{"bucketWeights":{"3":1},"totalWeight":2}}}`)
	f.Add(`{"metadata":{"annotations":{"vpa.carob.dev/open-windows":"{\"p\":{\"usage\":5}}"}},` +
		`"status":{"version":"v3"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var c Checkpoint
		if json.Unmarshal([]byte(text), &c) != nil {
			return
		}
		c.Namespace, c.Spec.VPAObjectName = "ns", "v"
		m, pods := NewModel(), []*corev1.Pod{podOf("p", 1, 0)}
		m.SetTargets(targetOf(autoscaler()))
		_ = m.Load(&c, traceStart)
		m.SetPods(pods, traceStart)
		feed(m, pods, traceStart, 100, 1<<30)
		s, err := m.Recommend(here, traceStart)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range s.Recommendation.Containers {
			if r.Target.Cpu().Sign() <= 0 || r.Target.Memory().Sign() <= 0 {
				t.Errorf("recommended %v", jsonOf(r))
			}
		}
		m.Checkpoints(here, traceStart)
	})
}
