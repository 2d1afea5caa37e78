package nodeobject

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	ktesting "k8s.io/client-go/testing"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/core/eviction"
)

type fixture struct {
	client *fake.Clientset
	r      *Reporter

	mu       sync.Mutex
	problems []string
	under    []eviction.Pressure
	events   []string
	hostIPs  []netip.Addr
	handlers []corev1.NodeRuntimeHandler
	lease    int // seconds
	looks    int

	log atomic.Pointer[atomic.Int32] // counts the lines of the log
}

func (f *fixture) set(problems ...string) {
	f.mu.Lock()
	f.problems = problems
	f.mu.Unlock()
	f.r.Wake()
	synctest.Wait()
}

func (f *fixture) node(t *testing.T) *corev1.Node {
	t.Helper()
	n, err := f.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (f *fixture) writes(verb, resource string) int {
	n := 0
	for _, a := range f.client.Actions() {
		if a.GetVerb() == verb && a.GetResource().Resource == resource {
			n++
		}
	}
	return n
}

func (f *fixture) addresses() []netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hostIPs
}

func start(t *testing.T, existing ...*corev1.Node) *fixture {
	f := &fixture{client: fake.NewClientset(), hostIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for _, n := range existing {
		if err := f.client.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	f.r = f.run(t, f.client)
	return f
}

// run runs a Reporter; client nil: there is no API server.
func (f *fixture) run(t *testing.T, client kubernetes.Interface) *Reporter {
	f.r = New(Config{
		Client: client, Name: "n1", HostIPs: f.addresses, Version: "v1.37.2", Runtime: "carob://1",
		PodCIDRs:     []string{"10.0.0.0/24", "fd00::/64"},
		LeaseSeconds: f.lease,
		MaxPods:      110, Port: 10250, Labels: map[string]string{"zone": "a"},
		Machine: Machine{
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("1Gi"),
				corev1.ResourceEphemeralStorage: resource.MustParse("10Gi"),
			},
			Info:      corev1.NodeSystemInfo{BootID: "boot-2"},
			Threshold: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")},
		},
		Known: &Known{},
		Features: func() (*corev1.NodeFeatures, []corev1.NodeRuntimeHandler) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return nil, f.handlers
		},
		Event: func(_, reason, message string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events = append(f.events, reason+": "+message)
		},
	})
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), funcr.New(func(string, string) {
		if n := f.log.Load(); n != nil {
			n.Add(1)
		}
	}, funcr.Options{})))
	var run sync.WaitGroup
	run.Go(func() {
		f.r.Run(ctx, Sources{
			Pressures: func(context.Context, time.Time) []eviction.Pressure {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.looks++
				return f.under
			},
			Problems: func(context.Context) []string { f.mu.Lock(); defer f.mu.Unlock(); return f.problems },
			Images:   func(context.Context) []corev1.ContainerImage { return nil },
		})
	})
	t.Cleanup(func() { cancel(); run.Wait() })
	synctest.Wait()
	return f.r
}

// Without an API server, the object is made for this process: it is complete, follows the machine, and nothing is
// written (S14.5).
func TestStandalone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{client: fake.NewClientset(), hostIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			problems: []string{"container runtime is down"}}
		r := f.run(t, nil)
		select {
		case <-r.Registered():
		default:
			t.Fatal("no pod can be admitted")
		}
		select {
		case <-r.Ready():
			t.Fatal("ready although the runtime is down")
		default:
		}
		f.set()
		select {
		case <-r.Ready():
		default:
			t.Fatal("not ready")
		}
		n := r.Node()
		if !strings.HasPrefix(isReady(n), "True") || n.Labels["zone"] != "a" ||
			n.Status.Capacity.Pods().Value() != 110 {
			t.Errorf("%+v", n)
		}
		since := condition(n, corev1.NodeReady).LastTransitionTime
		f.mu.Lock()
		f.under = []eviction.Pressure{{Kind: corev1.NodeMemoryPressure}}
		f.mu.Unlock()
		time.Sleep(time.Minute)
		n = r.Node()
		if c := condition(n, corev1.NodeMemoryPressure); c == nil || c.Status != corev1.ConditionTrue {
			t.Errorf("memory pressure is not seen: %+v", n.Status.Conditions)
		}
		if got := condition(n, corev1.NodeReady).LastTransitionTime; !got.Equal(&since) {
			t.Errorf("ready since %v, was %v", got, since)
		}
		if len(f.client.Actions()) > 0 {
			t.Errorf("calls: %v", f.client.Actions())
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if got := fmt.Sprint(f.events); !strings.Contains(got, "NodeHasInsufficientMemory") {
			t.Errorf("events %v", f.events)
		}
	})
}

func isReady(n *corev1.Node) string {
	c := condition(n, corev1.NodeReady)
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
}

// The object is registered ready with everything of the machine, and the lease follows (L0.44).
func TestRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		n := f.node(t)
		select {
		case <-f.r.Ready():
		default:
			t.Error("not ready")
		}
		if got := isReady(n); got != "True KubeletReady kubelet is posting ready status" {
			t.Errorf("Ready: %s", got)
		}
		if n.Labels[corev1.LabelHostname] != "n1" || n.Labels[corev1.LabelOSStable] != "linux" ||
			n.Labels["zone"] != "a" {
			t.Errorf("labels %v", n.Labels)
		}
		if got := n.Status.Allocatable.Memory().Value(); got != 1<<30-100<<20 {
			t.Errorf("allocatable memory %d", got)
		}
		if n.Spec.PodCIDR != "10.0.0.0/24" || len(n.Spec.PodCIDRs) != 2 ||
			n.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 ||
			n.Status.Capacity.Pods().Value() != 110 {
			t.Errorf("node %+v", n)
		}
		lease, err := f.client.CoordinationV1().Leases(leaseNamespace).Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil || *lease.Spec.LeaseDurationSeconds != 40 {
			t.Errorf("lease %+v, %v", lease, err)
		}
		if !slices.Contains(f.events, "NodeReady: Node n1 status is now: NodeReady") {
			t.Errorf("events %v", f.events)
		}
	})
}

// Idle: a lease every 10 s, a status every 5 min (L0.44).
func TestIdleWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.client.ClearActions()
		time.Sleep(20 * time.Minute)
		if n := f.writes("update", "leases"); n < 115 || n > 121 {
			t.Errorf("%d leases in 20 minutes", n)
		}
		if n := f.writes("update", "nodes"); n < 3 || n > 4 {
			t.Errorf("%d statuses in 20 minutes", n)
		}
	})
}

// New images are reported with the next regular look, not with a write for each.
func TestImagesChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.client.ClearActions()
		for range 5 {
			f.r.ImagesChanged()
		}
		time.Sleep(time.Minute)
		if n := f.writes("update", "nodes"); n != 1 {
			t.Errorf("%d statuses", n)
		}
	})
}

// A problem is reported at once, and so is its end (L7.164a).
func TestNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.set("container runtime is down")
		if got := isReady(f.node(t)); got != "False KubeletNotReady container runtime is down" {
			t.Errorf("Ready: %s", got)
		}
		f.set("a", "b")
		if got := isReady(f.node(t)); got != "False KubeletNotReady [a, b]" {
			t.Errorf("Ready: %s", got)
		}
		f.set()
		if got := isReady(f.node(t)); !strings.HasPrefix(got, "True") {
			t.Errorf("Ready: %s", got)
		}
	})
}

// A runtime handler that is gone or is back is reported at once, and once.
func TestHandlersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.client.ClearActions()
		for i, handlers := range [][]corev1.NodeRuntimeHandler{{{Name: ""}, {Name: "kata"}}, {{Name: ""}}} {
			f.mu.Lock()
			f.handlers = handlers
			f.mu.Unlock()
			for range 3 {
				f.r.Wake()
				synctest.Wait()
			}
			if got := f.node(t).Status.RuntimeHandlers; len(got) != len(handlers) {
				t.Errorf("the node has the handlers %v, want %v", got, handlers)
			}
			if n := f.writes("update", "nodes"); n != i+1 {
				t.Errorf("%d statuses after %d changes", n, i+1)
			}
		}
	})
}

// L7.146
func TestPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		status := func() string {
			c := condition(f.node(t), corev1.NodeMemoryPressure)
			return string(c.Status) + " " + c.Reason + ": " + c.Message
		}
		set := func(under ...eviction.Pressure) {
			f.mu.Lock()
			f.under = under
			f.mu.Unlock()
			f.r.Wake()
			synctest.Wait()
		}
		if got := status(); got != "False KubeletHasSufficientMemory: kubelet has sufficient memory available" {
			t.Error(got)
		}
		set(eviction.Pressure{Kind: corev1.NodeMemoryPressure, Why: "memory.available is below 100Mi"})
		if got := status(); got != "True KubeletHasInsufficientMemory: kubelet has insufficient memory available: memory.available is below 100Mi" {
			t.Error(got)
		}
		set()
		if got := status(); got != "False KubeletHasSufficientMemory: kubelet has sufficient memory available" {
			t.Error(got)
		}
	})
}

// A node that is there already keeps what others wrote; a new boot ID gets an event (L7.80).
func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"mine": "yes"}},
			Spec: corev1.NodeSpec{Unschedulable: true, PodCIDR: "10.9.0.0/24", Taints: []corev1.Taint{
				{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
				{Key: "keep", Effect: corev1.TaintEffectNoExecute},
			}},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"}},
		}
		f := start(t, old)
		n := f.node(t)
		if n.Labels["mine"] != "yes" || n.Labels["zone"] != "a" || !n.Spec.Unschedulable ||
			n.Spec.PodCIDR != "10.9.0.0/24" {
			t.Errorf("labels %v, spec %+v", n.Labels, n.Spec)
		}
		if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != "keep" {
			t.Errorf("taints %v", n.Spec.Taints)
		}
		if !strings.HasPrefix(isReady(n), "True") {
			t.Errorf("Ready: %s", isReady(n))
		}
		if !slices.Contains(f.events, "Rebooted: Node n1 has been rebooted, boot id: boot-2") {
			t.Errorf("events %v", f.events)
		}
	})
}

// A deleted Node object is created again.
func TestDeletedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		if err := f.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		f.node(t)
	})
}

func TestImageList(t *testing.T) {
	got := ImageList([]*cri.Image{
		{Id: "1", RepoTags: []string{"small:1"}, Size: 1}, {Id: "2"},
		{Id: "3", RepoTags: []string{"big:1"}, RepoDigests: []string{"big@sha256:0"}, Size: 9},
	})
	if len(got) != 2 || got[0].Names[0] != "big@sha256:0" || got[1].SizeBytes != 1 {
		t.Errorf("%+v", got)
	}
}

func TestMachine(t *testing.T) {
	m, err := ReadMachine(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if m.Info.KernelVersion == "" || m.Info.BootID == "" || m.Capacity.Cpu().Value() < 1 ||
		m.Capacity.Memory().Value() < 1<<20 || m.Capacity.StorageEphemeral().Value() < 1<<20 {
		t.Errorf("%+v", m)
	}
}

// L10.71: a node that becomes unschedulable, or schedulable again, gets one event; also a node that is unschedulable at
// the start.
func TestCordon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Spec: corev1.NodeSpec{Unschedulable: true}})
		seen := func(unschedulable bool) {
			n := f.node(t)
			n.Spec.Unschedulable = unschedulable
			f.r.Seen(n)
		}
		seen(true)
		seen(false)
		seen(false)
		seen(true)
		var got []string
		for _, e := range f.events {
			if strings.Contains(e, "Schedulable") {
				got = append(got, e)
			}
		}
		not, is := "NodeNotSchedulable: Node n1 status is now: NodeNotSchedulable",
			"NodeSchedulable: Node n1 status is now: NodeSchedulable"
		if !slices.Equal(got, []string{not, is, not}) {
			t.Errorf("events %q", got)
		}
	})
}

// Changed addresses are written at the next check, and only then.
func TestAddressesFollowTheMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		writes := f.writes("update", "nodes")
		f.set()
		if again := f.writes("update", "nodes"); again != writes {
			t.Errorf("%d writes without a change", again-writes)
		}
		f.mu.Lock()
		f.hostIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")}
		f.mu.Unlock()
		f.set()
		want := []corev1.NodeAddress{{Type: "InternalIP", Address: "198.51.100.7"},
			{Type: "InternalIP", Address: "2001:db8::7"}, {Type: "Hostname", Address: "n1"}}
		if got := f.node(t).Status.Addresses; !slices.Equal(got, want) {
			t.Errorf("the node has %v", got)
		}
	})
}

// S11.100–S11.104, S11.121: pods may request what neither a reservation nor a hard threshold takes; all together are
// limited to what is not reserved.
func TestAllocatable(t *testing.T) {
	m := Machine{Capacity: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"), "hugepages-2Mi": resource.MustParse("1Gi"),
	}}
	hard, err := eviction.Parse(eviction.Settings{Hard: map[string]string{
		"memory.available": "100Mi", "nodefs.available": "10%", "imagefs.available": "15%"},
		Soft: map[string]string{"memory.available": "1Gi"}, SoftGrace: map[string]string{"memory.available": "1m"}})
	if err != nil {
		t.Fatal(err)
	}
	reserved := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"),
		corev1.ResourceMemory: resource.MustParse("1Gi"), "pid": resource.MustParse("1000")}
	if err := m.Reserve(reserved, hard); err != nil {
		t.Fatal(err)
	}
	got := m.Allocatable()
	for name, want := range map[corev1.ResourceName]string{corev1.ResourceCPU: "3500m",
		corev1.ResourceMemory: "6044Mi", corev1.ResourceEphemeralStorage: "90Gi", "hugepages-2Mi": "1Gi"} {
		q := got[name]
		if q.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s: %s, want %s", name, q.String(), want)
		}
	}
	if _, shown := got["pid"]; shown {
		t.Error("process IDs are shown")
	}
	if q := m.ForPods()[corev1.ResourceMemory]; q.Cmp(resource.MustParse("7Gi")) != 0 {
		t.Errorf("limit of all pods: %s", q.String())
	}
	err = m.Reserve(corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("9Gi")}, nil)
	want := `invalid Node Allocatable configuration. Resource "memory" has a reservation of 9Gi but capacity of 8Gi. ` +
		`Expected capacity >= reservation.`
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestAdvertisedResources: the agent completes within ten seconds what others write into the capacity of its Node:
// extended resources become allocatable, change, and leave again; the machine's own quantities are restored.
func TestAdvertisedResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		const foo = "example.com/foo"
		for _, step := range []struct {
			what      string
			advertise func(corev1.ResourceList)
			foo       int64
		}{
			{"advertised", func(l corev1.ResourceList) { l[foo] = resource.MustParse("3") }, 3},
			{"more", func(l corev1.ResourceList) { l[foo] = resource.MustParse("5") }, 5},
			{"another quantity of the machine", func(l corev1.ResourceList) { l["cpu"] = resource.MustParse("64") }, 5},
			{"gone", func(l corev1.ResourceList) { delete(l, foo) }, 0},
		} {
			n := f.node(t)
			step.advertise(n.Status.Capacity)
			stored, err := f.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			f.r.Seen(stored)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			n = f.node(t)
			for what, list := range map[string]corev1.ResourceList{"capacity": n.Status.Capacity,
				"allocatable": n.Status.Allocatable} {
				q, ok := list[foo]
				if q.Value() != step.foo || ok != (step.foo > 0) || list.Cpu().Value() != 4 {
					t.Errorf("%s: %s %v", step.what, what, list)
				}
			}
		}
	})
}

// While the API server is away, the node tries seldom and the log has a line each minute, not each second; when it is
// back, the node is reported within 7 seconds.
func TestAPIServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		var away atomic.Bool
		tries := 0
		f.client.PrependReactor("*", "*", func(ktesting.Action) (bool, runtime.Object, error) {
			if !away.Load() {
				return false, nil, nil
			}
			tries++
			return true, nil, errors.New("connection refused")
		})
		renewed := func() time.Time {
			l, err := f.client.CoordinationV1().Leases(leaseNamespace).Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return l.Spec.RenewTime.Time
		}
		var lines atomic.Int32
		f.log.Store(&lines)
		away.Store(true)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if tries < 60 || tries > 200 {
			t.Errorf("%d tries in ten minutes", tries)
		}
		if n := lines.Load(); n < 9 || n > 11 {
			t.Errorf("%d lines in the log of ten minutes", n)
		}
		away.Store(false)
		before := time.Now()
		time.Sleep(mostRetry)
		synctest.Wait()
		if !renewed().After(before) {
			t.Error("the lease is not renewed")
		}
		if n := lines.Load(); n > 12 {
			t.Errorf("%d lines in the log", n)
		}
	})
}

// hanging is an API server that never answers.
type hanging struct{}

func (hanging) RoundTrip(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

// L7.147: what is short is noticed within seconds, however long the lease is valid, and although the API server does
// not answer.
func TestLooks(t *testing.T) {
	looks := func(t *testing.T, client kubernetes.Interface) {
		f := &fixture{lease: 4000, hostIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
		f.run(t, client)
		time.Sleep(10 * time.Minute)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.looks < 30 || f.looks > 100 {
			t.Errorf("%d looks at the node in ten minutes", f.looks)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		looks(t, client)
		leases := 0
		for _, a := range client.Actions() {
			if a.GetResource().Resource == "leases" {
				leases++
			}
		}
		if leases != 1 {
			t.Errorf("the lease was written %d times in 10 of its 66 minutes", leases)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		silent, err := kubernetes.NewForConfig(&rest.Config{Host: "http://silent.invalid", QPS: -1,
			Transport: hanging{}})
		if err != nil {
			t.Fatal(err)
		}
		looks(t, silent)
	})
}
