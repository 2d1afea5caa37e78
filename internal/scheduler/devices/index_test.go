package devices

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const driver = "driver.example.com"

// deviceClass serves the extended resource unless that is empty.
func deviceClass(name, extended string) *resourcev1.DeviceClass {
	c := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("class-" + name)}}
	if extended != "" {
		c.Spec.ExtendedResourceName = &extended
	}
	return c
}

// slice offers devices of driver on a node.
func slice(node string, devices ...string) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + node},
		Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &node,
			Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}}}
	for _, d := range devices {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: d})
	}
	return s
}

// request returns a request for one device of a class.
func request(name, class string) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{Name: name, Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class,
		AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}
}

func claimOf(name string, requests ...resourcev1.DeviceRequest) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}}}
}

// allocated allocates a device of a node to a claim; the node is also the name of the pool.
func allocated(c *resourcev1.ResourceClaim, node, device string) *resourcev1.ResourceClaim {
	c.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "r", Driver: driver, Pool: node, Device: device}}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}
	return c
}

func reservedFor(c *resourcev1.ResourceClaim, pods ...string) *resourcev1.ResourceClaim {
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID("uid-" + p)})
	}
	return c
}

// podWith returns a pod that uses claims.
func podWith(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
	}
	return p
}

// requesting adds a request for one extended resource to the container of a pod.
func requesting(p *corev1.Pod, resourceName string) *corev1.Pod {
	one := corev1.ResourceList{corev1.ResourceName(resourceName): resource.MustParse("1")}
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
	return p
}

func nodeOf(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// index returns an Index with the class gpu and these objects.
func index(objects ...any) *Index {
	x := NewIndex()
	x.SetClass(deviceClass("gpu", ""))
	for _, o := range objects {
		switch o := o.(type) {
		case *resourcev1.ResourceClaim:
			x.SetClaim(o)
		case *resourcev1.DeviceClass:
			x.SetClass(o)
		case *resourcev1.ResourceSlice:
			x.SetSlice(o)
		case *resourcev1.DeviceTaintRule:
			x.SetRule(o)
		default:
			panic(fmt.Sprintf("%T", o))
		}
	}
	return x
}

// begin fails the test unless the pod can try nodes.
func begin(t *testing.T, x *Index, pod *corev1.Pod) *Attempt {
	t.Helper()
	a, why, err := x.Begin(t.Context(), pod, Limits{}, time.Now())
	if a == nil || why != "" || err != nil {
		t.Fatalf("begin for %s: %q, %v", pod.Name, why, err)
	}
	return a
}

// try returns why a node is refused; empty if it is not.
func try(t *testing.T, a *Attempt, node string) string {
	t.Helper()
	why, err := a.Try(t.Context(), nodeOf(node))
	if err != nil {
		t.Fatalf("try node %s: %v", node, err)
	}
	return why
}

// The scheduler's own write is newer than the next watch event; a claim that was created again has the same name
// and is stored, independent of its version.
func TestOlderVersionsAreNotTaken(t *testing.T) {
	version := func(uid, v string) *resourcev1.ResourceClaim {
		c := claimOf("c")
		c.UID, c.ResourceVersion = types.UID(uid), v
		return c
	}
	x := NewIndex()
	for _, test := range []struct {
		claim *resourcev1.ResourceClaim
		taken bool
		known string
	}{
		{version("one", "9"), true, "9"},
		{version("one", "10"), true, "10"}, // versions are numbers, not texts
		{version("one", "9"), false, "10"},
		{version("two", "3"), true, "3"},
	} {
		if _, taken := x.SetClaim(test.claim); taken != test.taken {
			t.Errorf("%s %s was taken: %v", test.claim.UID, test.claim.ResourceVersion, taken)
		}
		if got := x.Claims()[0].ResourceVersion; got != test.known {
			t.Errorf("after %s %s, version %s is stored", test.claim.UID, test.claim.ResourceVersion, got)
		}
	}
	x.RemoveClaim(version("one", "11")) // late event: the first one was deleted
	if len(x.Claims()) != 1 {
		t.Error("the present claim of this name was removed")
	}
	x.RemoveClaim(version("two", "4"))
	if len(x.Claims()) != 0 {
		t.Error("a deleted claim is stored")
	}
}

func TestPodsThatCannotTryNodes(t *testing.T) { // S9.21
	full := allocated(claimOf("full", request("r", "gpu")), "n1", "d1")
	for i := range resourcev1.ResourceClaimReservedForMaxSize {
		reservedFor(full, fmt.Sprint("other-", i))
	}
	x := index(slice("n1", "d1", "d2"), full, claimOf("wrong", request("r", "nothing")), claimOf("c", request("r", "gpu")))
	first := begin(t, x, podWith("first", "c"))
	if why := try(t, first, "n1"); why != "" {
		t.Fatal(why)
	}
	x.Reserve(first, "n1")
	for _, test := range []struct{ claim, why string }{
		{"full", "resourceclaim in use"},
		{"wrong", "request r: device class nothing does not exist"},
		{"c", "resource claim ns/c is in the process of being allocated"},
		{"absent", `resourceclaim.resource.k8s.io "absent" not found`},
	} {
		a, why, err := x.Begin(t.Context(), podWith("p", test.claim), Limits{}, time.Now())
		if a != nil || why != test.why || err != nil {
			t.Errorf("a pod with claim %s: %v, %q, %v", test.claim, a, why, err)
		}
	}
	if a, why, err := x.Begin(t.Context(), podWith("p"), Limits{}, time.Now()); a != nil || why != "" || err != nil {
		t.Errorf("a pod without claims: %v, %q, %v", a, why, err)
	}
	// A pod with a reservation may use a full claim.
	begin(t, x, podWith("other-3", "full"))
	x.Release(first.pod.UID)
	begin(t, x, podWith("p", "c"))
}

// A device that was found for a pod is not allocated to another one, from Reserve until the claim is
// written.
func TestReservedDevicesAreInUse(t *testing.T) {
	x := index(slice("n1", "d1"), claimOf("a", request("r", "gpu")), claimOf("b", request("r", "gpu")))
	first := begin(t, x, podWith("first", "a"))
	if why := try(t, first, "n1"); why != "" {
		t.Fatal(why)
	}
	x.Reserve(first, "n1")
	second := podWith("second", "b")
	if why := try(t, begin(t, x, second), "n1"); why != reasonNoDevices {
		t.Errorf("the second pod: %q", why)
	}
	x.Release(first.pod.UID)
	if why := try(t, begin(t, x, second), "n1"); why != "" {
		t.Errorf("after the first pod gave up: %q", why)
	}
	x.SetClaim(allocated(claimOf("a", request("r", "gpu")), "n1", "d1"))
	if why := try(t, begin(t, x, second), "n1"); why != reasonNoDevices {
		t.Errorf("after the first claim was written: %q", why)
	}
}

// Admin access does not use devices (S9.4).
func TestAdminAccessUsesNothing(t *testing.T) {
	watching := allocated(claimOf("monitor"), "n1", "d1")
	watching.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	x := index(slice("n1", "d1"), watching, claimOf("c", request("r", "gpu")))
	if why := try(t, begin(t, x, podWith("p", "c")), "n1"); why != "" {
		t.Error(why)
	}
}

// Taints are added and removed with their rules.
func TestTaintRules(t *testing.T) { // S9.62
	rule := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "broken"},
		Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: new(driver), Pool: new("n1"), Device: new("d1")},
			Taint:          resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}}}
	x := index(slice("n1", "d1"), claimOf("c", request("r", "gpu")))
	pod := podWith("p", "c")
	if why := try(t, begin(t, x, pod), "n1"); why != "" {
		t.Error(why)
	}
	x.SetRule(rule)
	if why := try(t, begin(t, x, pod), "n1"); why != reasonNoDevices {
		t.Errorf("a tainted device: %q", why)
	}
	x.RemoveRule(rule)
	if why := try(t, begin(t, x, pod), "n1"); why != "" {
		t.Error(why)
	}
	x.SetSlice(slice("n1", "d2"))
	if got := deviceOn(t, x, pod); got != "d2" {
		t.Errorf("with another device, the pod gets %s", got)
	}
	x.RemoveSlice(slice("n1"))
	if why := try(t, begin(t, x, pod), "n1"); why != reasonNoDevices {
		t.Errorf("without a slice: %q", why)
	}
}

// deviceOn is the device that the pod's claim would get on node n1.
func deviceOn(t *testing.T, x *Index, pod *corev1.Pod) string {
	t.Helper()
	a := begin(t, x, pod)
	try(t, a, "n1")
	return a.found["n1"].results["uid-c"].Devices.Results[0].Device
}

// An allocation binds its pods to the node of its devices.
func TestAllocatedElsewhere(t *testing.T) { // S9.23, S9.29
	for _, test := range []struct {
		users    []string
		obstacle bool
	}{
		{nil, true},
		{[]string{"p"}, true},
		{[]string{"other"}, false},
		{[]string{"p", "other"}, false},
	} {
		c := reservedFor(allocated(claimOf("c", request("r", "gpu")), "n1", "d1"), test.users...)
		a := begin(t, index(slice("n1", "d1"), slice("n2", "d2"), c), podWith("p", "c"))
		if c, _ := a.Obstacle(); c != nil {
			t.Errorf("used by %v: an obstacle before a node was refused", test.users)
		}
		if why := try(t, a, "n1"); why != "" {
			t.Errorf("the node of the device: %q", why)
		}
		if why := try(t, a, "n2"); why != reasonElsewhere {
			t.Errorf("another node: %q", why)
		}
		if c, made := a.Obstacle(); (c != nil) != test.obstacle || made {
			t.Errorf("used by %v: obstacle %v, made for extended resources: %v", test.users, c, made)
		}
	}
}

// The first of several alternatives is the best.
func TestScores(t *testing.T) { // S9.25
	choice := resourcev1.DeviceRequest{Name: "r"}
	for _, class := range []string{"big", "small"} {
		choice.FirstAvailable = append(choice.FirstAvailable, resourcev1.DeviceSubRequest{Name: class,
			DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1})
	}
	only := func(name, node string) *resourcev1.DeviceClass { // devices of this node
		c := deviceClass(name, "")
		c.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.attributes[%q].node == %q`, driver, node)}}}
		return c
	}
	with := func(node string) *resourcev1.ResourceSlice {
		s := slice(node, "d")
		s.Spec.Devices[0].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"node": {StringValue: &node}}
		return s
	}
	a := begin(t, index(only("big", "n2"), only("small", "n1"), with("n1"), with("n2"), with("n3"),
		claimOf("c", choice)), podWith("p", "c"))
	if got := a.Scores(); len(got) != 0 {
		t.Errorf("before a node was found: %v", got)
	}
	for node, want := range map[string]string{"n1": "", "n2": "", "n3": reasonNoDevices} {
		if why := try(t, a, node); why != want {
			t.Errorf("node %s: %q", node, why)
		}
	}
	if got := a.Scores(); len(got) != 2 || got["n2"] != 100 || got["n1"] >= 100 || got["n1"] == 0 {
		t.Errorf("scores %v: n2 has the first alternative, n1 the second", got)
	}
}

// A class serves an extended resource on nodes that do not offer it themselves.
func TestExtendedResources(t *testing.T) { // S9.60, S9.61
	x := index(deviceClass("nic", "example.com/nic"), slice("n1", "d1"), slice("n2", "d2"))
	pod := requesting(podWith("p"), "example.com/nic")
	a := begin(t, x, pod)
	offers := nodeOf("n2")
	offers.Status.Allocatable = corev1.ResourceList{"example.com/nic": resource.MustParse("4")}
	for _, n := range []*corev1.Node{nodeOf("n1"), offers} {
		if why, err := a.Try(t.Context(), n); why != "" || err != nil {
			t.Fatalf("node %s: %q, %v", n.Name, why, err)
		}
	}
	if f := a.found["n1"]; f.extended == nil || len(f.mappings) != 1 || f.results[unnamed] == nil {
		t.Errorf("n1 has found %+v: it needs a claim", f)
	}
	if f := a.found["n2"]; f.extended != nil || len(f.results) != 0 {
		t.Errorf("n2 has found %+v: it offers the resource itself", f)
	}
	// A claim of an earlier attempt blocks the pod until it is deleted.
	stale := a.found["n1"].extended.DeepCopy()
	stale.Name, stale.UID = "stale", "uid-stale"
	x.SetClaim(stale)
	a = begin(t, x, pod)
	if why := try(t, a, "n1"); why != reasonStale {
		t.Errorf("beside a claim of an earlier attempt: %q", why)
	}
	if c, made := a.Obstacle(); c == nil || c.UID != "uid-stale" || !made {
		t.Errorf("obstacle %v, made for extended resources: %v", c, made)
	}
	x.RemoveClass(deviceClass("nic", ""))
	if names := x.ByClass(pod); !slices.Equal(names, nil) {
		t.Errorf("without the class, classes serve %v", names)
	}
}
