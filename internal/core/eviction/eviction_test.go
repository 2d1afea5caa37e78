package eviction

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var begin = time.Unix(1_000_000, 0)

func rules(t *testing.T, s Settings) Config {
	t.Helper()
	all, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return Config{Thresholds: all, Transition: DefaultTransition}
}

func mem(available int64) []Observation {
	return []Observation{{MemoryAvailable, available << 20, 8 << 30}}
}

// L7.145
func TestDefaultThresholds(t *testing.T) {
	c := rules(t, Settings{})
	gib := func(available, capacity int64) []Observation {
		var all []Observation
		for _, s := range []Signal{NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable, ImageFsInodesFree} {
			all = append(all, Observation{s, available, capacity})
		}
		return append(all, mem(101)...)
	}
	for _, x := range []struct {
		available int64
		due       string
	}{{10, ""}, {5, ""}, {4, "nodefs.available nodefs.inodesFree imagefs.available imagefs.inodesFree"}} {
		_, v := Look(State{}, c, gib(x.available, 100), begin)
		if got := due(v); got != x.due {
			t.Errorf("%d%% left: due %q, want %q", x.available, got, x.due)
		}
	}
	_, v := Look(State{}, c, mem(99), begin)
	if due(v) != "memory.available" ||
		!slices.Equal(v.Pressures, []Pressure{{corev1.NodeMemoryPressure, "memory.available is below 100Mi"}}) {
		t.Errorf("99Mi left: %+v", v)
	}
	// A file system that does not count inodes is never short of them.
	if _, v := Look(State{}, c, []Observation{{NodeFsInodesFree, 0, 0}}, begin); len(v.Due) > 0 {
		t.Errorf("no inodes counted: %+v", v)
	}
}

func due(v Verdict) string {
	var names []string
	for _, d := range v.Due {
		names = append(names, string(d.Signal))
	}
	return strings.Join(names, " ")
}

// L7.146: a condition stays five minutes after the last hit.
func TestPressureLasts(t *testing.T) {
	c := rules(t, Settings{})
	s, _ := Look(State{}, c, mem(50), begin)
	s, v := Look(s, c, mem(500), begin.Add(4*time.Minute))
	if len(v.Due) > 0 || !slices.Equal(v.Pressures,
		[]Pressure{{corev1.NodeMemoryPressure, "memory.available was below 100Mi in the last 5m0s"}}) {
		t.Errorf("after 4 minutes: %+v", v)
	}
	if _, v = Look(s, c, mem(500), begin.Add(5*time.Minute)); len(v.Pressures) > 0 {
		t.Errorf("after 5 minutes: %+v", v)
	}
}

// L7.147, L7.151
func TestSoftThresholdWaits(t *testing.T) {
	c := rules(t, Settings{Hard: map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"},
		Soft: map[string]string{"memory.available": "300Mi"}, SoftGrace: map[string]string{"memory.available": "90s"}})
	s, v := Look(State{}, c, mem(200), begin)
	if len(v.Due) > 0 || len(v.Pressures) != 1 || !v.Wake.Equal(begin.Add(90*time.Second)) {
		t.Errorf("at once: %+v", v)
	}
	left, _ := Look(s, c, mem(400), begin.Add(time.Minute))
	if _, v = Look(left, c, mem(200), begin.Add(2*time.Minute)); len(v.Due) > 0 {
		t.Errorf("left in between, the grace begins again: %+v", v)
	}
	_, v = Look(s, c, append(mem(50), Observation{NodeFsAvailable, 1, 100}), begin.Add(90*time.Second))
	if due(v) != "memory.available memory.available nodefs.available" || v.Due[0].Grace != 0 {
		t.Errorf("memory first, hard first: %+v", v.Due)
	}
	if Grace(v.Due[0], time.Minute) != time.Second || Grace(v.Due[1], time.Minute) != time.Minute {
		t.Errorf("graces: %v %v", Grace(v.Due[0], time.Minute), Grace(v.Due[1], time.Minute))
	}
}

func TestMinimumReclaim(t *testing.T) {
	c := rules(t, Settings{Hard: map[string]string{"memory.available": "100Mi"},
		MinReclaim: map[string]string{"memory.available": "50Mi"}})
	if _, v := Look(State{}, c, mem(120), begin); len(v.Due) > 0 {
		t.Errorf("never hit: %+v", v)
	}
	s, _ := Look(State{}, c, mem(90), begin)
	if s, v := Look(s, c, mem(120), begin); len(v.Due) != 1 || !slices.Equal(v.Pressures,
		[]Pressure{{corev1.NodeMemoryPressure,
			"memory.available was below 100Mi and is below 150Mi, which the minimum reclaim requires"}}) {
		t.Errorf("not reclaimed: %+v", v)
	} else if _, v = Look(s, c, mem(150), begin); len(v.Due) > 0 {
		t.Errorf("reclaimed: %+v", v)
	}
}

// A threshold that is never left stays reached, also if its quantity is as large as a number can be.
func TestHugeThreshold(t *testing.T) {
	all, err := Parse(Settings{Hard: map[string]string{"memory.available": "9223372036854775807"},
		MinReclaim: map[string]string{"memory.available": "1Gi"}})
	if err != nil {
		t.Fatal(err)
	}
	free := []Observation{{Signal: MemoryAvailable, Available: 8 << 30, Capacity: 16 << 30}}
	for _, before := range []bool{false, true} {
		if !Hit(all[0], free, before) {
			t.Errorf("reached before: %t: it is not reached", before)
		}
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for want, s := range map[string]Settings{
		`"memory.free" is not a signal`:    {Hard: map[string]string{"memory.free": "1"}},
		`"1e30" is more than any machine`:  {Hard: map[string]string{"memory.available": "1e30"}},
		`"ten" is neither a quantity`:      {Hard: map[string]string{"memory.available": "ten"}},
		`"110%" is not a percentage`:       {Hard: map[string]string{"memory.available": "110%"}},
		"needs a grace period":             {Soft: map[string]string{"pid.available": "1k"}},
		"needs a soft threshold":           {SoftGrace: map[string]string{"pid.available": "1m"}},
		"minimum reclaim of pid.available": {MinReclaim: map[string]string{"pid.available": "-5"}},
	} {
		if _, err := Parse(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if all, err := Parse(Settings{Hard: map[string]string{"memory.available": "0%",
		"pid.available": "100%"}}); err != nil || len(all) > 0 {
		t.Errorf("switched off: %v %v", all, err)
	}
	if _, err := ParseList("a<1,a<2", "<"); err == nil {
		t.Error("a signal twice")
	}
}

func pod(name string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, e := range edit {
		e(p)
	}
	return p
}

func requests(name corev1.ResourceName, q string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{name: resource.MustParse(q)}
	}
}

func limits(q string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			corev1.ResourceEphemeralStorage: resource.MustParse(q)}
	}
}

func withPriority(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &n } }

func static(p *corev1.Pod) {
	p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
}

func names(us []Usage) string {
	var n []string
	for _, u := range us {
		n = append(n, u.Pod.Name)
	}
	return strings.Join(n, " ")
}

// L7.148, L7.116
func TestRank(t *testing.T) {
	list := []Usage{
		{Pod: pod("within", requests(corev1.ResourceMemory, "1Gi")), Memory: 900 << 20},
		{Pod: pod("static", static), Memory: 4 << 30},
		{Pod: pod("critical", withPriority(2_000_000_000)), Memory: 4 << 30},
		{Pod: pod("over-high", withPriority(100)), Memory: 3 << 30},
		{Pod: pod("over-small"), Memory: 100 << 20},
		{Pod: pod("over-big", requests(corev1.ResourceMemory, "1Gi")), Memory: 2 << 30},
	}
	if got := names(Rank(MemoryAvailable, list, false)); got != "over-big over-small over-high within" {
		t.Error("memory:", got)
	}
	list = []Usage{
		{Pod: pod("logs"), Containers: []ContainerUsage{{Logs: 10, LayerInodes: 1}}},
		{Pod: pod("layer"), Containers: []ContainerUsage{{Layer: 20, LayerInodes: 9}}},
		{Pod: pod("volume", requests(corev1.ResourceEphemeralStorage, "50")),
			Volumes: []VolumeUsage{{Bytes: 40, Inodes: 5}}},
	}
	for _, x := range []struct {
		signal Signal
		split  bool
		want   string
	}{
		{NodeFsAvailable, false, "layer logs volume"}, {NodeFsAvailable, true, "logs layer volume"},
		{ImageFsAvailable, true, "layer logs volume"},
		{NodeFsInodesFree, false, "layer volume logs"}, {NodeFsInodesFree, true, "volume logs layer"},
	} {
		if got := names(Rank(x.signal, list, x.split)); got != x.want {
			t.Errorf("%s, split %t: %s, want %s", x.signal, x.split, got, x.want)
		}
	}
	list = []Usage{{Pod: pod("few"), Processes: 3}, {Pod: pod("high", withPriority(5)), Processes: 900},
		{Pod: pod("many"), Processes: 500}}
	if got := names(Rank(PIDAvailable, list, false)); got != "many few high" {
		t.Error("pids:", got)
	}
}

// Whatever the usage: critical pods are never evicted, pods over their requests come first, and the
// order does not depend on the order of the list.
func TestRankProperties(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		var list []Usage
		for i := range r.IntN(8) {
			u := Usage{Pod: pod(string(rune('a'+i)), requests(corev1.ResourceMemory, "100"),
				withPriority(int32(r.IntN(3)))), Memory: int64(r.IntN(300))}
			if r.IntN(5) == 0 {
				static(u.Pod)
			}
			list = append(list, u)
		}
		got := Rank(MemoryAvailable, list, false)
		for i := range got {
			if got[i].Pod.Annotations != nil {
				t.Fatalf("seed %d: a static pod is evicted", seed)
			}
			if i > 0 && got[i].Memory > 100 && got[i-1].Memory <= 100 {
				t.Fatalf("seed %d: %s is evicted before %s", seed, got[i-1].Pod.Name, got[i].Pod.Name)
			}
		}
		if want := len(slices.DeleteFunc(slices.Clone(list),
			func(u Usage) bool { return u.Pod.Annotations != nil })); len(got) != want {
			t.Fatalf("seed %d: %d ranked, want %d", seed, len(got), want)
		}
	}
}

// L7.150, L7.149
func TestExplain(t *testing.T) {
	th := rules(t, Settings{}).Thresholds
	u := Usage{Pod: pod("p", requests(corev1.ResourceMemory, "10Mi")),
		Containers: []ContainerUsage{{Name: "c", Memory: 64 << 20}, {Name: "d", Memory: 1}}}
	u.Pod.Spec.Containers = append(u.Pod.Spec.Containers,
		corev1.Container{Name: "d", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}}})
	n := Explain(th[0], mem(50), u)
	if want := "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. " +
		"Container c was using 64Mi, request is 10Mi, has larger consumption of memory. "; n.Message != want {
		t.Errorf("got  %q\nwant %q", n.Message, want)
	}
	if a := n.Annotations; a["offending_containers"] != "c" || a["offending_containers_usage"] != "64Mi" ||
		a["starved_resource"] != "memory" {
		t.Errorf("annotations: %v", a)
	}
	// ephemeral: it cannot have requests
	u.Containers = append(u.Containers, ContainerUsage{Name: "debugger", Memory: 1 << 30})
	u.Memory = 65 << 20
	u.Pod.Spec.Resources = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("20Mi")}}
	n = Explain(th[0], nil, u)
	if want := "The node was low on resource: memory. Pod p was using 65Mi, request is 20Mi, has larger consumption of memory. " +
		"Container c was using 64Mi, request is 10Mi, has larger consumption of memory. "; n.Message != want {
		t.Errorf("got  %q\nwant %q", n.Message, want)
	}
	if a := n.Annotations; a["offending_pod"] != "p" || a["offending_pod_usage"] != "65Mi" {
		t.Errorf("annotations: %v", a)
	}
	n = Explain(th[1], []Observation{{NodeFsAvailable, 4 << 30, 100 << 30}},
		Usage{Pod: pod("p"), Containers: []ContainerUsage{{Name: "c", Layer: 1 << 20, Logs: 1 << 20}}})
	if want := "The node was low on resource: ephemeral-storage. Threshold quantity: 5Gi, available: 4Gi. " +
		"Container c was using 2Mi, request is 0, has larger consumption of ephemeral-storage. "; n.Message != want {
		t.Errorf("got  %q\nwant %q", n.Message, want)
	}
	n = Explain(th[2], []Observation{{NodeFsInodesFree, 4, 100}},
		Usage{Pod: pod("p"), Containers: []ContainerUsage{{Name: "c", LayerInodes: 9}}})
	if want := "The node was low on resource: inodes. Threshold quantity: 5, available: 4. "; n.Message != want {
		t.Errorf("got  %q\nwant %q", n.Message, want)
	}
}

// L7.152
func TestLocalLimits(t *testing.T) {
	volume := func(p *corev1.Pod) {
		q := resource.MustParse("1Mi")
		p.Spec.Volumes = []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &q}}}}
	}
	inMemory := func(p *corev1.Pod) { p.Spec.Volumes[0].EmptyDir.Medium = corev1.StorageMediumMemory }
	for _, x := range []struct {
		u    Usage
		has  bool
		want string
	}{
		{Usage{Pod: pod("p"), Containers: []ContainerUsage{{Name: "c", Layer: 1 << 40}}}, false, ""},
		{Usage{Pod: pod("p", volume), Volumes: []VolumeUsage{{Name: "v", Bytes: 1 << 20}}}, true, ""},
		{Usage{Pod: pod("p", volume), Volumes: []VolumeUsage{{Name: "v", Bytes: 1<<20 + 1}}}, true,
			`Usage of EmptyDir volume "v" exceeds the limit "1Mi". `},
		{Usage{Pod: pod("p", volume, inMemory), Volumes: []VolumeUsage{{Name: "v", Bytes: 1 << 30}}}, false, ""},
		{Usage{Pod: pod("p", limits("2Mi")), Volumes: []VolumeUsage{{Name: "v", Bytes: 1 << 20}},
			Containers: []ContainerUsage{{Name: "c", Layer: 1 << 20, Logs: 1}}}, true,
			"Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "},
		{Usage{Pod: pod("p", limits("1e30")), Containers: []ContainerUsage{{Name: "c", Layer: 1 << 20}}}, true, ""},
	} {
		if got := HasLocalLimit(x.u.Pod); got != x.has {
			t.Errorf("has a limit: %t, want %t", got, x.has)
		}
		if got, _ := OverLocalLimit(x.u); got != x.want {
			t.Errorf("got %q, want %q", got, x.want)
		}
	}
	two := pod("p", limits("1Mi"))
	two.Spec.Containers = append(two.Spec.Containers,
		corev1.Container{Name: "d", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("10Mi")}}})
	if got, signal := OverLocalLimit(Usage{Pod: two,
		Containers: []ContainerUsage{{Name: "c", Layer: 2 << 20},
			{Name: "d"}}}); got != `Container c exceeded its local ephemeral storage limit "1Mi". ` ||
		signal != "ephemeralcontainerfs.limit" {
		t.Errorf("got %q", got)
	}
}

// L7.133
func TestImages(t *testing.T) {
	p := ImagePolicy{High: 85, Low: 80, MinAge: 2 * time.Minute}
	for _, x := range []struct{ available, need int64 }{{16, 0}, {15, 5}, {1, 19}} {
		if got := ImageNeed(p, x.available, 100); got != x.need {
			t.Errorf("%d%% left: %d to free, want %d", x.available, got, x.need)
		}
	}
	now := begin
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	list := []Image{
		{ID: "used", Found: ago(time.Hour), LastUsed: now, InUse: true},
		{ID: "young", Found: ago(time.Minute)},
		{ID: "just-used", Found: ago(time.Hour), LastUsed: ago(time.Minute)},
		{ID: "later", Found: ago(time.Hour), LastUsed: ago(3 * time.Minute)},
		{ID: "first", Found: ago(time.Hour), LastUsed: ago(9 * time.Minute)},
		{ID: "never", Found: ago(10 * time.Minute)},
	}
	var got []string
	for _, im := range UnusedImages(list, p.MinAge, now) {
		got = append(got, im.ID)
	}
	if want := []string{"never", "first", "later"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for age, want := range map[time.Duration][]string{0: nil, 5 * time.Minute: {"never", "first"},
		9 * time.Minute: {"never"}, 10 * time.Minute: nil} {
		got = nil
		for _, im := range OldImages(list, age, now) {
			got = append(got, im.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("older than %s: %v, want %v", age, got, want)
		}
	}
}

// L7.155
func TestShutdownGroups(t *testing.T) {
	ten := int64(10)
	short := pod("short", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &ten })
	groups := ShutdownGroups([]*corev1.Pod{pod("critical", withPriority(2_000_000_000)), pod("plain"), short,
		pod("low", withPriority(-5))}, ShutdownSteps(time.Minute, 20*time.Second))
	if len(groups) != 2 || len(groups[0].Pods) != 3 || groups[0].Grace != 40*time.Second ||
		groups[1].Pods[0].Name != "critical" || groups[1].Grace != 20*time.Second {
		t.Errorf("%+v", groups)
	}
	if got := groups[0].Within(short); got != 10*time.Second {
		t.Error(got)
	}
	if got := groups[1].Within(short); got != 10*time.Second {
		t.Error(got)
	}
	if got := groups[1].Within(groups[1].Pods[0]); got != 20*time.Second {
		t.Error(got)
	}
}

// S11.78: steps in any order; a pod belongs to the highest step that its priority reaches, or to the lowest step.
func TestShutdownSteps(t *testing.T) {
	steps := []ShutdownStep{{100_000, 10 * time.Second}, {0, 60 * time.Second}, {1_000, 180 * time.Second}}
	var list []*corev1.Pod
	for _, p := range []int32{-1, 0, 999, 1_000, 99_999, 100_000, 2_000_000_000} {
		list = append(list, pod(fmt.Sprint(p), withPriority(p)))
	}
	var got []string
	for _, g := range ShutdownGroups(list, steps) {
		for _, p := range g.Pods {
			got = append(got, fmt.Sprintf("%s in %s", p.Name, g.Grace))
		}
	}
	want := []string{"-1 in 1m0s", "0 in 1m0s", "999 in 1m0s", "1000 in 3m0s", "99999 in 3m0s", "100000 in 10s",
		"2000000000 in 10s"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if steps[0].Priority != 100_000 {
		t.Error("the caller's steps were sorted")
	}
}

// L7.133: the event's text, with sizes in readable units.
func TestStillFull(t *testing.T) {
	for size, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB",
		10 << 20: "10.0 MiB", 1 << 30: "1.0 GiB", 5 << 40: "5.0 TiB", 5 << 50: "5120.0 TiB"} {
		if got := binarySize(size); got != want {
			t.Errorf("%d: %s, want %s", size, got, want)
		}
	}
	want := "Insufficient free disk space on the node's image filesystem (93% of 10.0 GiB used). Failed to free sufficient space by deleting unused images (freed 7 bytes). " +
		"Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
	if got := StillFull(Observation{Available: 752 << 20, Capacity: 10 << 30}, 7); got != want {
		t.Error(got)
	}
	if got := StillFull(Observation{}, 0); !strings.Contains(got, "(100% of 0 B used)") {
		t.Error(got)
	}
}
