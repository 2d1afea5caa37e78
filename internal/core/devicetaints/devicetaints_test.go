package devicetaints

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(second int64) *metav1.Time {
	return &metav1.Time{Time: start.Add(time.Duration(second) * time.Second)}
}

func taint(key, value string, second int64) resourcev1.DeviceTaint {
	return resourcev1.DeviceTaint{Key: key, Value: value, Effect: resourcev1.DeviceTaintEffectNoExecute,
		TimeAdded: at(second)}
}

func slice(name string, generation int64, devices ...resourcev1.Device) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "d", Pool: resourcev1.ResourcePool{Name: "p", Generation: generation}, Devices: devices}}
}

func device(name string, taints ...resourcev1.DeviceTaint) resourcev1.Device {
	return resourcev1.Device{Name: name, Taints: taints}
}

func rule(name string, t resourcev1.DeviceTaint, s *resourcev1.DeviceTaintSelector) *resourcev1.DeviceTaintRule {
	return &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name),
		Generation: 1}, Spec: resourcev1.DeviceTaintRuleSpec{Taint: t, DeviceSelector: s}}
}

// claim is allocated with a device, and reserved for the pods.
func claim(name, device string, tolerations []resourcev1.DeviceToleration, pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourcev1.DeviceRequestAllocationResult{{Driver: "d", Pool: "p",
		Device: device, Tolerations: tolerations}}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: p, UID: types.UID("uid-" + p)})
	}
	return c
}

func pod(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{NodeName: "n"}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
	}
	return p
}

func among(claims ...*resourcev1.ResourceClaim) func(string) *resourcev1.ResourceClaim {
	return func(name string) *resourcev1.ResourceClaim {
		for _, c := range claims {
			if c.Name == name {
				return c
			}
		}
		return nil
	}
}

// text formats an eviction: "never", or its second and its rules.
func text(e *Eviction) string {
	if e == nil {
		return "never"
	}
	out := fmt.Sprint(int64(e.At.Sub(start) / time.Second))
	for _, r := range e.Rules {
		out += " " + r.Name
	}
	return out
}

func tolerates(key, value string, op resourcev1.DeviceTolerationOperator, effect resourcev1.DeviceTaintEffect,
	seconds ...int64) resourcev1.DeviceToleration {
	t := resourcev1.DeviceToleration{Key: key, Value: value, Operator: op, Effect: effect}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return t
}

// Which tolerations of an allocation result delay or prevent an eviction (S9.62).
func TestTolerations(t *testing.T) {
	const exists, equal = resourcev1.DeviceTolerationOpExists, resourcev1.DeviceTolerationOpEqual
	const noExecute, noSchedule = resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule
	type list = []resourcev1.DeviceToleration
	for name, c := range map[string]struct {
		tolerations list
		want        string
	}{
		"none":                    {nil, "10"},
		"exists":                  {list{tolerates("k", "", exists, noExecute)}, "never"},
		"exists, other key":       {list{tolerates("other", "", exists, noExecute)}, "10"},
		"exists, empty key":       {list{tolerates("", "", exists, noExecute)}, "never"},
		"equal":                   {list{tolerates("k", "v", equal, noExecute)}, "never"},
		"equal by default":        {list{tolerates("k", "v", "", noExecute)}, "never"},
		"equal, other value":      {list{tolerates("k", "w", equal, noExecute)}, "10"},
		"empty key, equal":        {list{tolerates("", "v", equal, noExecute)}, "never"},
		"unknown operator":        {list{tolerates("k", "v", "Like", noExecute)}, "10"},
		"other effect":            {list{tolerates("k", "", exists, noSchedule)}, "10"},
		"any effect, as upstream": {list{tolerates("k", "", exists, "")}, "10"},
		"for a while":             {list{tolerates("k", "", exists, noExecute, 30)}, "40"},
		"zero seconds":            {list{tolerates("k", "", exists, noExecute, 0)}, "10"},
		"negative seconds":        {list{tolerates("k", "", exists, noExecute, -5)}, "10"},
		"the shortest counts": {list{tolerates("k", "", exists, noExecute, 30),
			tolerates("", "", exists, noExecute, 20)}, "30"},
		"for ever wins": {list{tolerates("k", "", exists, noExecute, 5),
			tolerates("k", "v", equal, noExecute)}, "never"},
	} {
		x := NewIndex()
		x.SetSlice(nil, slice("s", 1, device("gpu", taint("k", "v", 10))))
		if got := text(x.ForClaim(claim("c", "gpu", c.tolerations))); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		r := NewIndex()
		r.SetRule(rule("r", taint("k", "v", 10), &resourcev1.DeviceTaintSelector{}))
		want := c.want
		if want != "never" {
			want += " r"
		}
		if got := text(r.ForClaim(claim("c", "gpu", c.tolerations))); got != want {
			t.Errorf("%s, by a rule: %s, want %s", name, got, want)
		}
	}
	x := NewIndex()
	x.SetSlice(nil, slice("s", 1, device("gpu", taint("k", "v", 10))))
	long := x.ForClaim(claim("c", "gpu", list{tolerates("k", "", exists, noExecute, 1<<63-1)}))
	if long == nil || long.At.Before(start.AddDate(200, 0, 0)) {
		t.Errorf("the longest tolerationSeconds overflow: %v", long)
	}
}

// What a rule's selector selects; a rule without one selects nothing.
func TestSelectors(t *testing.T) {
	s := func(driver, pool, device string) *resourcev1.DeviceTaintSelector {
		out := &resourcev1.DeviceTaintSelector{}
		for p, v := range map[**string]string{&out.Driver: driver, &out.Pool: pool, &out.Device: device} {
			if v != "" {
				*p = &v
			}
		}
		return out
	}
	for i, c := range []struct {
		selector *resourcev1.DeviceTaintSelector
		want     bool
	}{{nil, false}, {s("", "", ""), true}, {s("d", "", ""), true}, {s("e", "", ""), false}, {s("d", "p", "gpu"), true},
		{s("d", "q", "gpu"), false}, {s("", "", "gpu"), true}, {s("", "", "gpu2"), false}} {
		if got := Selects(rule("r", taint("k", "", 0), c.selector), Device{"d", "p", "gpu"}); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
}

// Several claims are joined by the earliest time, with the rules of all of them.
func TestForPod(t *testing.T) {
	x := NewIndex()
	x.SetSlice(nil, slice("s", 1, device("own", taint("k", "", 50)), device("a"), device("b")))
	for name, second := range map[string]int64{"a": 30, "b": 20} {
		x.SetRule(rule(name, taint("k", "", second), &resourcev1.DeviceTaintSelector{Device: &name}))
	}
	owned := claim("made", "own", nil, "p")
	controller := true
	owned.OwnerReferences = []metav1.OwnerReference{{UID: "uid-other", Controller: &controller}}
	get := among(claim("own", "own", nil, "p"), claim("a", "a", nil, "p"), claim("b", "b", nil, "p"),
		claim("others", "own", nil, "q"), claim("clean", "clean", nil, "p"), owned,
		&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "free"}})
	unbound := pod("p", "own")
	unbound.Spec.NodeName = ""
	replaced := pod("p", "own")
	replaced.UID = "another"
	made := pod("p")
	made.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "e", ResourceClaimTemplateName: new("t")}}
	unknown := made.DeepCopy()
	made.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "e", ResourceClaimName: new("made")}}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"one":                    {pod("p", "own"), "50"},
		"a rule":                 {pod("p", "a"), "30 a"},
		"all":                    {pod("p", "own", "b", "a"), "20 a b"},
		"in any order":           {pod("p", "a", "own", "b"), "20 a b"},
		"one claim twice":        {pod("p", "a", "a"), "30 a"},
		"no taint":               {pod("p", "clean"), "never"},
		"not reserved":           {pod("p", "others"), "never"},
		"not allocated":          {pod("p", "free"), "never"},
		"no such claim":          {pod("p", "none"), "never"},
		"no node":                {unbound, "never"},
		"another pod of it name": {replaced, "never"},
		"a claim of another pod": {made, "never"},
		"a claim not made yet":   {unknown, "never"},
	} {
		if got := text(x.ForPod(c.pod, get)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// If the slices of a pool have two generations, the newest counts.
func TestGenerations(t *testing.T) {
	x, c := NewIndex(), claim("c", "gpu", nil)
	changed := func(before, after *resourcev1.ResourceSlice, want ...Device) {
		t.Helper()
		if got := x.SetSlice(before, after); !slices.Equal(got, want) {
			t.Errorf("changed %v, want %v", got, want)
		}
	}
	gpu := Device{"d", "p", "gpu"}
	old, next := slice("old", 1, device("gpu", taint("k", "", 5))), slice("new", 2, device("gpu"))
	changed(nil, old, gpu)
	if got := text(x.ForClaim(c)); got != "5" {
		t.Errorf("first generation: %s", got)
	}
	changed(nil, next, gpu)
	if got := text(x.ForClaim(c)); got != "never" {
		t.Errorf("an old generation evicts: %s", got)
	}
	changed(next, nil, gpu)
	if got := text(x.ForClaim(c)); got != "5" {
		t.Errorf("the newest generation was deleted, the older one counts again: %s", got)
	}
	other := slice("old", 1, device("gpu", taint("k", "", 6)))
	changed(old, other, gpu)
	changed(other, other)
	changed(other, nil, gpu)
	if !x.Empty() || len(x.pools) != 0 {
		t.Error("taints of deleted slices are left")
	}
}

// After random changes in any order, the index equals one that is built anew from all objects, and it returns each
// device whose taints changed.
func TestIndexIsThatOfTheObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, stored := NewIndex(), map[string]*resourcev1.ResourceSlice{}
		rules := map[string]*resourcev1.DeviceTaintRule{}
		names := []string{"a", "b", "c"}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			if rapid.Bool().Draw(t, "rule") {
				r := rule(name, taint("k", "", rapid.Int64Range(0, 9).Draw(t, "at")),
					&resourcev1.DeviceTaintSelector{Device: new(rapid.SampledFrom(names).Draw(t, "of"))})
				r.Spec.Taint.Effect = rapid.SampledFrom([]resourcev1.DeviceTaintEffect{"NoExecute", "None",
					"NoSchedule"}).Draw(t, "effect")
				if rapid.Bool().Draw(t, "gone") {
					x.RemoveRule(name)
					delete(rules, name)
				} else {
					x.SetRule(r)
					rules[name] = r
				}
				continue
			}
			var next *resourcev1.ResourceSlice
			if !rapid.Bool().Draw(t, "gone") {
				next = slice(name, rapid.Int64Range(1, 3).Draw(t, "generation"))
				d := device(name) // each slice its own device, as drivers must
				for range rapid.IntRange(0, 2).Draw(t, "taints") {
					d.Taints = append(d.Taints, taint("k", "", rapid.Int64Range(0, 9).Draw(t, "at")))
				}
				next.Spec.Devices = append(next.Spec.Devices, d)
			}
			before := map[string]string{}
			for _, n := range names {
				before[n] = fmt.Sprint(x.pools[poolID{"d", "p"}].get(n))
			}
			changed := x.SetSlice(stored[name], next)
			if next == nil {
				delete(stored, name)
			} else {
				stored[name] = next
			}
			for _, n := range names {
				differs := before[n] != fmt.Sprint(x.pools[poolID{"d", "p"}].get(n))
				if differs != slices.Contains(changed, Device{"d", "p", n}) {
					t.Fatalf("device %s: changed %v, returned %v", n, differs, changed)
				}
			}
		}
		var newest int64
		for _, s := range stored {
			newest = max(newest, s.Spec.Pool.Generation)
		}
		for _, n := range names {
			var times []int64
			if s := stored[n]; s != nil && s.Spec.Pool.Generation == newest {
				for _, taint := range s.Spec.Devices[0].Taints {
					times = append(times, int64(taint.TimeAdded.Sub(start)/time.Second))
				}
			}
			why := ""
			for _, name := range slices.Sorted(maps.Keys(rules)) {
				r := rules[name]
				if r.Spec.Taint.Effect == "NoExecute" && *r.Spec.DeviceSelector.Device == n {
					times, why = append(times, int64(r.Spec.Taint.TimeAdded.Sub(start)/time.Second)), why+" "+name
				}
			}
			want := "never"
			if len(times) > 0 {
				want = fmt.Sprint(slices.Min(times)) + why
			}
			if got := text(x.ForClaim(claim("c", n, nil))); got != want {
				t.Fatalf("device %s: %s, want %s", n, got, want)
			}
		}
	})
}

// get are the times of a device's taints.
func (p *pool) get(device string) []time.Time {
	var out []time.Time
	if p != nil {
		for _, t := range p.of(device) {
			out = append(out, t.TimeAdded.Time)
		}
	}
	return out
}

// The texts of a rule's condition (S9.63).
func TestStatus(t *testing.T) {
	x := NewIndex()
	x.SetSlice(nil, slice("s", 2, device("gpu"), device("other")))
	x.SetSlice(nil, slice("stale", 1, device("gone")))
	claims := []*resourcev1.ResourceClaim{claim("one", "gpu", nil, "a"), claim("shared", "other", nil, "a", "b", "c")}
	elsewhere := claim("far", "other", nil, "d")
	elsewhere.Namespace = "ns2"
	claims = append(claims, elsewhere)
	ending, far := pod("c", "shared"), pod("d", "far")
	ending.DeletionTimestamp, far.Namespace = at(0), "ns2"
	pods := map[string]*corev1.Pod{"ns/a": pod("a", "one", "shared"), "ns/b": pod("b", "shared"), "ns/c": ending,
		"ns2/d": far}
	cluster := Cluster{Claims: claims, Claim: func(namespace, name string) *resourcev1.ResourceClaim {
		i := slices.IndexFunc(claims, func(c *resourcev1.ResourceClaim) bool {
			return c.Namespace == namespace && c.Name == name
		})
		if i < 0 {
			return nil
		}
		return claims[i]
	}, Pod: func(namespace, name string) *corev1.Pod { return pods[namespace+"/"+name] }}
	const dry = " if the effect was NoExecute. This information will not be updated again. " +
		"Recreate the DeviceTaintRule to trigger an update."
	for _, c := range []struct {
		device, effect string
		evicted        int
		want           string
	}{
		{"gpu", "NoExecute", 0, "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace."},
		{"", "NoExecute", 1, "True PodsPendingEviction 3 pods need to be evicted in 2 different namespaces. " +
			"1 pod evicted since starting the controller."},
		{"none", "NoExecute", 0, "False NotStarted "},
		{"none", "NoExecute", 2, "False Completed 2 pods evicted since starting the controller."},
		{"gpu", "None", 0, "False NoEffect 1 published device selected. 1 allocated device selected. " +
			"1 pod would be evicted in 1 namespace" + dry},
		{"", "None", 0, "False NoEffect 2 published devices selected. 3 allocated devices selected. " +
			"3 pods would be evicted in 2 different namespaces" + dry},
		{"none", "None", 3, "False NoEffect 0 published devices selected. 0 allocated devices selected. " +
			"0 pods would be evicted in 0 different namespaces" + dry + " 3 pods evicted since starting the controller."},
		{"gpu", "NoSchedule", 0, "False OtherEffect Eviction only happens for the NoExecute effect."},
	} {
		r := rule("r", taint("k", "", 0), &resourcev1.DeviceTaintSelector{})
		r.Spec.Taint.Effect = resourcev1.DeviceTaintEffect(c.effect)
		if c.device != "" {
			r.Spec.DeviceSelector.Device = &c.device
		}
		got := x.Status(r, c.evicted, cluster)
		if text := fmt.Sprint(got.Status, " ", got.Reason, " ", got.Message); text != c.want ||
			got.ObservedGeneration != 1 || got.Type != "EvictionInProgress" {
			t.Errorf("%s %s: %+v\nwant %s", c.device, c.effect, got, c.want)
		}
		if r.Spec.Taint.Effect != resourcev1.DeviceTaintEffect(c.effect) {
			t.Error("the rule was modified")
		}
	}
}

// 10,000 devices whose taints are added and removed, slice by slice, and a claim for each of them.
func TestTenThousandDevices(t *testing.T) {
	const all, perSlice = 10_000, 100
	x := NewIndex()
	var clean, tainted []*resourcev1.ResourceSlice
	for i := range all / perSlice {
		a, b := slice(fmt.Sprint("s", i), 1), slice(fmt.Sprint("s", i), 1)
		for j := range perSlice {
			name := fmt.Sprint("gpu-", i*perSlice+j)
			a.Spec.Devices = append(a.Spec.Devices, device(name))
			b.Spec.Devices = append(b.Spec.Devices, device(name, taint("k", "", int64(j))))
		}
		clean, tainted = append(clean, a), append(tainted, b)
		x.SetSlice(nil, a)
	}
	count := func(want int) {
		t.Helper()
		n := 0
		for i := range all {
			if e := x.ForClaim(claim("c", fmt.Sprint("gpu-", i), nil)); e != nil {
				if n++; int(e.At.Sub(start)/time.Second) != i%perSlice {
					t.Fatalf("device %d: %s", i, text(e))
				}
			}
		}
		if n != want {
			t.Fatalf("%d claims are evicted, want %d", n, want)
		}
	}
	for range 3 {
		for i := range clean {
			if n := len(x.SetSlice(clean[i], tainted[i])); n != perSlice {
				t.Fatalf("slice %d: %d devices changed", i, n)
			}
		}
		count(all)
		for i := range clean {
			x.SetSlice(tainted[i], clean[i])
		}
		count(0)
	}
}
