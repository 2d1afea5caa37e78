package devices

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"carob/internal/core/pinning"
)

const gpu = "example.com/gpu"

func podWith(uid string, counts ...int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, Namespace: "default"}}
	for i, n := range counts {
		p.Spec.Containers = append(p.Spec.Containers, container(fmt.Sprintf("c%d", i), n))
	}
	return p
}

func container(name string, n int) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{gpu: *resource.NewQuantity(int64(n), resource.DecimalSI)}}}
}

func healthy(ids ...string) map[string]Device {
	all := map[string]Device{}
	for _, id := range ids {
		all[id] = Device{Healthy: true}
	}
	return all
}

// allocate does what the driver does with a plugin that allocates every request.
func allocate(p *Plugins, pod *corev1.Pod) error {
	for {
		request, err := p.Next(pod)
		if err != nil || request == nil {
			return err
		}
		p.Hold(pod.UID, request, request.Choose(nil))
		p.Assign(pod.UID, request.Container, request.Resource, []byte{})
	}
}

func TestErrors(t *testing.T) { // S8.23
	var p Plugins
	if err := allocate(&p, podWith("a", 1)); err != nil {
		t.Errorf("a resource that no plugin has: %v", err)
	}
	p.Update(gpu, healthy("d0", "d1"))
	for _, c := range []struct {
		name  string
		setup func()
		pod   *corev1.Pod
		want  string
	}{
		{"too many", func() {}, podWith("a", 3),
			"requested number of devices unavailable for example.com/gpu. Requested: 3, Available: 2"},
		{"all given", func() { _ = allocate(&p, podWith("b", 2)) }, podWith("a", 1),
			"requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0"},
		{"unhealthy", func() { p.Update(gpu, map[string]Device{"d0": {}, "d1": {}}) }, podWith("b", 2),
			"previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu"},
		{"none healthy", func() {}, podWith("a", 1),
			"no healthy devices present; cannot allocate unhealthy devices example.com/gpu"},
		{"away", func() { p.Disconnected(gpu) }, podWith("b", 2), "cannot allocate unregistered device example.com/gpu"},
		{"away, new", func() {}, podWith("a", 1), "cannot allocate unregistered device example.com/gpu"},
		{"changed", func() { p.Update(gpu, healthy("d0", "d1")) }, podWith("b", 1),
			`pod "b" container "c0" changed request for resource "example.com/gpu" from 2 to 1`},
	} {
		c.setup()
		if err := allocate(&p, c.pod); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
	if err := allocate(&p, podWith("b", 2)); err != nil {
		t.Errorf("the devices are back, and the pod has them: %v", err)
	}
}

// S8.10, S8.11.
func TestAmounts(t *testing.T) {
	var p Plugins
	check := func(when string, capacity, allocatable int64) {
		t.Helper()
		if c, a := p.Amounts(); c[gpu] != capacity || a[gpu] != allocatable {
			t.Errorf("%s: capacity %d, allocatable %d; want %d, %d", when, c[gpu], a[gpu], capacity, allocatable)
		}
	}
	p.Update(gpu, map[string]Device{"d0": {Healthy: true}, "d1": {}})
	check("one is unhealthy", 2, 1)
	p.Disconnected(gpu)
	check("nobody serves them", 2, 0)
	p.Expire(gpu)
	check("for too long", 0, 0)
	if c, _ := p.Amounts(); len(c) != 1 {
		t.Error("the resource is no longer reported")
	}
	p.Update(gpu, healthy("d0"))
	check("back", 1, 1)
	p.Expire(gpu) // a timer that came late
	check("a late timer", 1, 1)
}

// S8.21: the devices of an init container are reused by the containers that start after it; those of a
// sidecar are not.
func TestInitContainers(t *testing.T) {
	for _, sidecar := range []bool{false, true} {
		var p Plugins
		p.Update(gpu, healthy("d0", "d1", "d2"))
		pod := podWith("a", 1, 1)
		first := container("init", 2)
		if sidecar {
			first.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		pod.Spec.InitContainers = []corev1.Container{first}
		err := allocate(&p, pod)
		if sidecar != (err != nil) {
			t.Errorf("sidecar %v: %v", sidecar, err)
		}
		if !sidecar && (!slices.Contains(p.Of("a", "init")[0].Devices, p.Of("a", "c0")[0].Devices[0]) ||
			p.Of("a", "c0")[0].Devices[0] == p.Of("a", "c1")[0].Devices[0]) {
			t.Errorf("given: %+v", p.Assignments)
		}
	}
}

func TestPreferred(t *testing.T) { // S8.22; a plugin may prefer nonsense
	a := Request{Count: 3, Include: []string{"x"}, Free: []string{"a", "b", "c"}}
	if got := a.Choose([]string{"c", "nobody", "x", "c", "b"}); !slices.Equal(got, []string{"b", "c", "x"}) {
		t.Errorf("chose %v", got)
	}
	if got := a.Choose(nil); !slices.Equal(got, []string{"a", "b", "x"}) {
		t.Errorf("chose %v", got)
	}
}

// No device is assigned to two pods, whatever plugins do and whenever the agent restarts with only the stored state.
func TestNoDeviceTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Plugins
		ids := []string{"d0", "d1", "d2", "d3", "d4"}
		running := map[types.UID]map[string]bool{} // devices in use by pods, as their plugins know them
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			uid := types.UID(fmt.Sprintf("p%d", rapid.IntRange(0, 5).Draw(t, "pod")))
			switch rapid.SampledFrom([]string{"list", "lose", "expire", "pod", "pod", "refuse", "end", "crash"}).Draw(t,
				"what") {
			case "list":
				devices := map[string]Device{}
				for _, id := range ids {
					switch rapid.IntRange(0, 5).Draw(t, "health") {
					case 0:
					case 1:
						devices[id] = Device{}
					default:
						devices[id] = Device{Healthy: true}
					}
				}
				p.Update(gpu, devices)
			case "lose":
				p.Disconnected(gpu)
			case "expire":
				p.Expire(gpu)
			case "pod":
				n := 1 + int(uid[1]-'0')%3
				if allocate(&p, podWith(string(uid), n)) == nil && p.Has(uid) {
					running[uid] = map[string]bool{}
					for _, id := range p.Of(uid, "c0")[0].Devices {
						running[uid][id] = true
					}
					if len(running[uid]) != n {
						t.Fatalf("step %d: %s got %v", step, uid, running[uid])
					}
				}
			case "refuse": // the plugin fails
				if request, err := p.Next(podWith(string(uid), 1)); err == nil && request != nil {
					p.Hold(uid, request, request.Choose(nil))
					p.Drop(uid, request.Container, request.Resource)
				}
			case "end":
				p.Release(uid)
				delete(running, uid)
			case "crash": // between Hold and Assign, too
				if request, err := p.Next(podWith(string(uid), 1)); err == nil && request != nil {
					p.Hold(uid, request, request.Choose(nil))
				}
				again := Plugins{}
				for _, a := range p.Assignments {
					if a.Response != nil {
						again.Assignments = append(again.Assignments, a)
					}
				}
				known := map[string]Device{}
				if r := p.Resources[gpu]; r != nil {
					for id := range r.Devices {
						known[id] = Device{}
					}
				}
				again.Update(gpu, known)
				again.Disconnected(gpu)
				p = again
			}
			owner := map[string]types.UID{}
			for _, uid := range slices.Sorted(maps.Keys(running)) {
				for id := range running[uid] {
					if owner[id] != "" {
						t.Fatalf("step %d: %s is used by %s and %s", step, id, owner[id], uid)
					}
					owner[id] = uid
				}
			}
		}
	})
}

func claimFor(name string, pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "d1", Pool: "p", Device: "x"},
			{Request: "s", Driver: "d2", Pool: "p", Device: "y"}}}}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID(p)})
	}
	return c
}

func drivers(calls map[string][]*Claim) string {
	return strings.Join(slices.Sorted(maps.Keys(calls)), " ")
}

// S9.51 to S9.55: a claim is prepared once for all pods and unprepared after the last one; a new claim of the same
// name waits for the old one.
func TestClaims(t *testing.T) {
	c := Claims{}
	one := claimFor("one", "a", "b")
	if _, err := c.Enter(podWith("stranger"), []*resourcev1.ResourceClaim{one}); err == nil || len(c) != 0 {
		t.Errorf("a pod without a reservation: %v, %v", err, c)
	}
	calls, err := c.Enter(podWith("a"), []*resourcev1.ResourceClaim{one})
	if err != nil || drivers(calls) != "d1 d2" {
		t.Fatalf("%v, %v", calls, err)
	}
	c.Answered("uid-one", "d1", []Prepared{{Requests: []string{"r"}, Pool: "p", Device: "x", CDI: []string{"v/c=x"}}})
	// The agent restarts before d2 has answered: both drivers are called again.
	if calls, err = c.Enter(podWith("a"), []*resourcev1.ResourceClaim{one}); err != nil || drivers(calls) != "d1 d2" {
		t.Fatalf("%v, %v", calls, err)
	}
	c.Answered("uid-one", "d1", []Prepared{{Requests: []string{"r"}, Pool: "p", Device: "x", CDI: []string{"v/c=x"}}})
	c.Answered("uid-one", "d2", []Prepared{{Pool: "p", Device: "y", CDI: []string{"v/c=y"}}})
	c.Done([]*resourcev1.ResourceClaim{one})
	if calls, err = c.Enter(podWith("b"), []*resourcev1.ResourceClaim{one}); err != nil || len(calls) != 0 {
		t.Errorf("prepared twice: %v, %v", calls, err)
	}
	pod := podWith("a", 0)
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "entry", ResourceClaimName: new("one")}}
	for request, want := range map[string]int{"": 2, "r": 2, "other": 1} {
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "entry", Request: request}}
		if got := c.Of(pod, &pod.Spec.Containers[0]); len(got) != want {
			t.Errorf("request %q: %+v", request, got)
		}
	}
	pod.Spec.Containers[0].Resources.Claims = nil
	if got := c.Of(pod, &pod.Spec.Containers[0]); len(got) != 0 {
		t.Errorf("a container that lists no claim sees %+v", got)
	}
	if calls := c.Leave("a"); len(calls) != 0 {
		t.Errorf("undone while b uses it: %v", calls)
	}
	if calls := c.Leave("b"); drivers(calls) != "d1 d2" {
		t.Errorf("undone by %v", calls)
	}
	if _, err := c.Enter(podWith("a"), []*resourcev1.ResourceClaim{one}); err == nil ||
		err.Error() != "ResourceClaim one is being unprepared" {
		t.Error(err)
	}
	c.Unprepared("uid-one", "d1")
	c.Stays("uid-one")
	again := claimFor("one", "a")
	again.UID = "another"
	if _, err := c.Enter(podWith("a"), []*resourcev1.ResourceClaim{again}); err == nil ||
		!strings.HasPrefix(err.Error(), "old ResourceClaim with same name one and different UID uid-one still exists") {
		t.Error(err)
	}
	if calls := c.Leave("b"); drivers(calls) != "d2" {
		t.Errorf("then %v", calls)
	}
	c.Unprepared("uid-one", "d2")
	if len(c) != 0 || c.Has("b") {
		t.Errorf("left: %v", c)
	}
}

// A device that counts as free, because the pod that has it was force deleted, waits until it is unprepared: two pods
// never have it at once. Devices for administrators, and shared ones, do not wait.
func TestDevicesOfForceDeletedPods(t *testing.T) {
	c := Claims{}
	enter := func(o *resourcev1.ResourceClaim, pod string) string {
		if _, err := c.Enter(podWith(pod), []*resourcev1.ResourceClaim{o}); err != nil {
			return err.Error()
		}
		return ""
	}
	old := claimFor("old", "a")
	if err := enter(old, "a"); err != "" {
		t.Fatal(err)
	}
	c.Done([]*resourcev1.ResourceClaim{old})
	next := claimFor("next", "b")
	want := "device d1/p/x of ResourceClaim next is still prepared for ResourceClaim default/old " +
		"(previous pod force-deleted?!)"
	if got := enter(next, "b"); got != want || len(c) != 1 {
		t.Errorf("%q, %v", got, c)
	}
	admin := claimFor("admin", "c")
	admin.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	admin.Status.Allocation.Devices.Results[1].ShareID = new(types.UID("share"))
	if err := enter(admin, "c"); err != "" {
		t.Error(err)
	}
	// The claim itself is allocated again, with another device, for another pod.
	moved := claimFor("old", "d")
	moved.Status.Allocation.Devices.Results[0].Device = "z"
	want = "ResourceClaim old is still prepared with other devices (previous pod force-deleted?!)"
	if got := enter(moved, "d"); got != want {
		t.Error(got)
	}
	c.Leave("a")
	c.Unprepared("uid-old", "d1")
	c.Unprepared("uid-old", "d2")
	for o, pod := range map[*resourcev1.ResourceClaim]string{moved: "d", claimFor("other", "e"): "e"} {
		o.Status.Allocation.Devices.Results = o.Status.Allocation.Devices.Results[:1] // z and x
		if err := enter(o, pod); err != "" {
			t.Error(err)
		}
	}
}

// Devices on the chosen NUMA nodes come first, preferred ones before others; GetPreferredAllocation gets only these
// if there are more than needed. Hints reflect where healthy, free devices are (S10.31).
func TestNearDevices(t *testing.T) {
	p := Plugins{}
	p.Update("x/gpu", map[string]Device{"a": {Healthy: true, NUMA: []int64{0}}, "b": {Healthy: true, NUMA: []int64{1}},
		"c": {Healthy: true, NUMA: []int64{1}}, "d": {Healthy: true}, "e": {NUMA: []int64{0}}})
	p.Update("x/anywhere", map[string]Device{"z": {Healthy: true}})
	pod := func(name string, count int64) *corev1.Pod {
		limits := corev1.ResourceList{"x/gpu": *resource.NewQuantity(count, resource.DecimalSI),
			"x/anywhere": resource.MustParse("1")}
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(name)}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: limits}}}}}
	}
	text := func(count int64) string {
		q := pod("p", count)
		s := ""
		for _, c := range []*corev1.Container{nil, &q.Spec.Containers[0]} {
			hints := p.Hints(q, c, pinning.MaskOf(0, 1, 2))
			if list, known := hints["x/anywhere"]; list != nil || !known {
				t.Errorf("devices without nodes: %v", list)
			}
			for _, h := range hints["x/gpu"] {
				s += fmt.Sprint(h.Mask.Nodes(), h.Preferred, " ")
			}
		}
		return s
	}
	for count, want := range map[int64]string{1: "[0] true [1] true [0 1] false ", 2: "[1] true [0 1] false ",
		3: "[0 1] true ", 5: ""} {
		if got := text(count); got != want+want {
			t.Errorf("%d: %s, want %s twice", count, got, want)
		}
	}
	request, err := p.Next(pod("p", 1))
	if err != nil || request.Resource != "x/anywhere" {
		t.Fatal(request, err)
	}
	p.Hold("p", request, request.Choose(nil))
	if request, err = p.Next(pod("p", 1)); err != nil {
		t.Fatal(err)
	}
	p.Align(request, pinning.MaskOf(1))
	if got := request.Candidates(); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("candidates: %v", got)
	}
	for preferred, want := range map[string]string{"": "b", "c": "c", "a": "b"} {
		if got := request.Choose([]string{preferred}); !slices.Equal(got, []string{want}) {
			t.Errorf("preferred %q: %v, want %s", preferred, got, want)
		}
	}
	request.Count = 3
	if got := request.Choose(nil); !slices.Equal(got, []string{"a", "b", "c"}) || len(request.Candidates()) != 4 {
		t.Errorf("three: %v of %v", got, request.Candidates())
	}
}
