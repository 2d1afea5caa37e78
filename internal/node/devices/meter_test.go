package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes/fake"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// tally is a Meter that records its calls.
type tally struct {
	mu       sync.Mutex
	reported map[string]int
}

func (c *tally) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reported == nil {
		c.reported = map[string]int{}
	}
	c.reported[fmt.Sprintf(format, args...)]++
}

func (c *tally) Registered(resource string)                 { c.note("registered %s", resource) }
func (c *tally) Allocated(resource string, _ time.Duration) { c.note("allocated %s", resource) }
func (c *tally) DriverCalled(driver, method, code string, _ time.Duration) {
	c.note("%s %s %s", driver, method, code)
}
func (c *tally) ClaimsHandled(operation string, err error, _ time.Duration) {
	c.note("%s %t", operation, err != nil)
}
func (c *tally) PodResourcesServed(method string, err error) { c.note("%s %t", method, err != nil) }

// has waits for calls that follow a response, and compares them.
func (c *tally) has(a *agent, want map[string]int) {
	a.Helper()
	all := func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		var list []string
		for _, k := range slices.Sorted(maps.Keys(c.reported)) {
			list = append(list, fmt.Sprintf("%s: %d", k, c.reported[k]))
		}
		return strings.Join(list, "\n")
	}
	a.until("the figures", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		n := 0
		for _, one := range want {
			n += one
		}
		for _, one := range c.reported {
			n -= one
		}
		return n <= 0
	})
	c.mu.Lock()
	same := maps.Equal(c.reported, want)
	c.mu.Unlock()
	if !same {
		a.Errorf("told:\n%s", all())
	}
}

// S8.65, S9.80, S12.94: each call is counted once, failed ones as failed; resources with invalid names are not counted:
// every name is a time series.
func TestMeter(t *testing.T) {
	ctx, count := context.Background(), &tally{}
	root, client := short(t), fake.NewClientset(claimFor("one", "a"))
	pod := using("a", "one")
	pod.Spec.Containers[0].Resources.Limits = podWith("a", 1).Spec.Containers[0].Resources.Limits
	a := startWith(t, Config{Root: root, Client: client, Meter: count}, pod)
	p, d := &plugin{}, &draDriver{fail: map[string]string{"prepare": "no power"}}
	a.plug(p, "p.sock", dev(pluginapi.Healthy, "d0"))
	if err := a.register(&pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "p.sock",
		ResourceName: "example.com/\xff"}); err == nil {
		t.Error("a name that is not text was taken")
	}
	if err := a.register(&pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "p.sock",
		ResourceName: "example.com/a b"}); err == nil {
		t.Error("a name that is none was taken")
	}
	d.serveOn(t, root, "driver-reg.sock")
	<-d.reported
	a.allocatable(1)
	if err := a.PrepareClaims(ctx, pod); err == nil {
		t.Error("prepared although the driver says no")
	}
	if by, all := a.ClaimsInUse(); all != 0 || len(by) != 0 {
		t.Errorf("in use before it is prepared: %v, %d", by, all)
	}
	d.mu.Lock()
	d.fail = nil
	d.mu.Unlock()
	if err := errors.Join(a.PrepareClaims(ctx, pod), a.Allocate(ctx, pod), a.PrepareClaims(ctx, podWith("b", 1)),
		a.Release(ctx, "b")); err != nil {
		t.Fatal(err)
	}
	if by, all := a.ClaimsInUse(); all != 1 || !maps.Equal(by, map[string]int{"driver.example.com": 1}) {
		t.Errorf("in use: %v, %d", by, all)
	}
	api := podresources.NewPodResourcesListerClient(dial(t, filepath.Join(root, "pod-resources", "kubelet.sock")))
	if _, err := api.List(ctx, &podresources.ListPodResourcesRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
	if _, err := api.Get(ctx, &podresources.GetPodResourcesRequest{PodName: "nobody"}); err == nil {
		t.Error("a pod that nobody knows has resources")
	}
	if err := a.Release(ctx, "a"); err != nil {
		t.Error(err)
	}
	if _, all := a.ClaimsInUse(); all != 0 {
		t.Errorf("in use after the last pod: %d", all)
	}
	const service = "driver.example.com /k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
	count.has(a, map[string]int{
		"registered example.com/gpu": 1, "allocated example.com/gpu": 1,
		service + "NodePrepareResources OK": 2, service + "NodeUnprepareResources OK": 1,
		"PrepareResources true": 1, "PrepareResources false": 1, "UnprepareResources false": 1,
		"List false": 1, "Get true": 1,
	})
}
