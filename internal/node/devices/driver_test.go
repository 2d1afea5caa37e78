package devices

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// draDriver is a driver of claims.
type draDriver struct {
	drav1.UnimplementedDRAPluginServer
	registration.UnimplementedRegistrationServer
	drahealthv1.UnimplementedDRAResourceHealthServer
	mu       sync.Mutex
	calls    []string
	fail     map[string]string // error by method
	cdi      string
	second   string // another device of each claim with the same CDI name; empty: none
	versions []string
	reported chan *registration.RegistrationStatus
	server   *grpc.Server
	health   chan *drahealthv1.NodeWatchResourcesResponse
}

func (d *draDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: "DRAPlugin", Name: "driver.example.com", SupportedVersions: d.versions}, nil
}

func (d *draDriver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	d.reported <- s
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *draDriver) called(method string, claims []*drav1.Claim) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range claims {
		d.calls = append(d.calls, method+" "+c.Name)
	}
	return d.fail[method]
}

func (d *draDriver) made() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.calls, ", ")
}

func (d *draDriver) NodePrepareResources(_ context.Context, r *drav1.NodePrepareResourcesRequest) (
	*drav1.NodePrepareResourcesResponse, error) {
	failed := d.called("prepare", r.Claims)
	out := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		out.Claims[c.Uid] = &drav1.NodePrepareResourceResponse{Error: failed, Devices: []*drav1.Device{
			{PoolName: "pool", DeviceName: "gpu", CdiDeviceIds: []string{d.cdi}}}}
		if d.second != "" {
			out.Claims[c.Uid].Devices = append(out.Claims[c.Uid].Devices,
				&drav1.Device{PoolName: "pool", DeviceName: d.second, CdiDeviceIds: []string{d.cdi}})
		}
	}
	return out, nil
}

func (d *draDriver) NodeUnprepareResources(_ context.Context, r *drav1.NodeUnprepareResourcesRequest) (
	*drav1.NodeUnprepareResourcesResponse, error) {
	failed := d.called("unprepare", r.Claims)
	out := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		out.Claims[c.Uid] = &drav1.NodeUnprepareResourceResponse{Error: failed}
	}
	return out, nil
}

func (d *draDriver) NodeWatchResources(_ *drahealthv1.NodeWatchResourcesRequest,
	s grpc.ServerStreamingServer[drahealthv1.NodeWatchResourcesResponse]) error {
	for {
		select {
		case msg := <-d.health:
			if err := s.Send(msg); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func (d *draDriver) serveOn(t *testing.T, root, name string) {
	t.Helper()
	dir := filepath.Join(root, "plugins_registry")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if d.cdi == "" {
		d.cdi = "example.com/gpu=0"
	}
	if d.versions == nil {
		d.versions = []string{drav1.DRAPluginService, drahealthv1.DRAResourceHealthService}
	}
	d.reported, d.health = make(chan *registration.RegistrationStatus, 10),
		make(chan *drahealthv1.NodeWatchResourcesResponse, 10)
	l, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	d.server = grpc.NewServer()
	registration.RegisterRegistrationServer(d.server, d)
	drav1.RegisterDRAPluginServer(d.server, d)
	drahealthv1.RegisterDRAResourceHealthServer(d.server, d)
	go func() { _ = d.server.Serve(l) }()
	t.Cleanup(d.server.Stop)
}

func claimFor(name string, pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "driver.example.com", Pool: "pool",
			Device: "gpu"}}}}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID(p)})
	}
	return c
}

func using(uid, claim string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, Namespace: "default"},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "entry", ResourceClaimName: &claim}},
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
				Claims: []corev1.ResourceClaim{{Name: "entry"}}}}}}}
}

// S9.50 to S9.57, S16.75: prepared before the first start, undone after the last pod, across restarts and failures of
// everybody.
func TestDriver(t *testing.T) {
	ctx := context.Background()
	root, client := short(t), fake.NewClientset(claimFor("one", "a", "b"))
	a := start(t, root, client)
	pod := using("a", "one")
	fails := func(want string) {
		t.Helper()
		if err := a.PrepareClaims(ctx, pod); !errors.Is(err, ErrClaims) || !strings.Contains(err.Error(), want) {
			t.Errorf("prepared: %v, want %s", err, want)
		}
	}
	fails("prepare dynamic resources: DRA driver driver.example.com is not registered")
	if a.Held("a") {
		t.Error("a pod whose driver is missing can't be deleted freely")
	}
	d := &draDriver{fail: map[string]string{"prepare": "no power"}}
	d.serveOn(t, root, "driver-reg.sock")
	if s := <-d.reported; !s.PluginRegistered {
		t.Fatalf("told %+v", s)
	}
	fails("NodePrepareResources failed for ResourceClaim one: no power")
	if !a.Held("a") {
		t.Error("the driver was asked, and would not be asked to undo it")
	}
	d.fail, d.cdi = nil, "no CDI name"
	fails("the name of a CDI device")
	d.cdi = "example.com/gpu=0"
	if err := a.PrepareClaims(ctx, pod); err != nil {
		t.Fatal(err)
	}
	options, err := a.Options(ctx, pod, &pod.Spec.Containers[0])
	if err != nil || !slices.Equal(options.CDI, []string{"example.com/gpu=0"}) {
		t.Errorf("%+v, %v", options, err)
	}
	before := d.made()
	if err := a.PrepareClaims(ctx, using("b", "one")); err != nil || d.made() != before {
		t.Errorf("prepared again: %s, %v", d.made(), err)
	}

	a.stop()
	a = start(t, root, client) // the driver is found on the disk
	<-d.reported
	if o, err := a.Options(ctx, pod, &pod.Spec.Containers[0]); err != nil || len(o.CDI) != 1 || d.made() != before {
		t.Errorf("after a restart: %+v, %v, %s", o, err, d.made())
	}
	// A new sandbox: the machine may have been started again, and what the driver has prepared may be lost.
	for range 2 {
		if err := a.PrepareClaims(ctx, pod); err != nil || d.made() != before+", prepare one" {
			t.Errorf("for a new sandbox after a restart: %s, %v", d.made(), err)
		}
	}
	if err := a.Release(ctx, "a"); err != nil || strings.Contains(d.made(), "unprepare") {
		t.Errorf("undone while the other pod uses it: %s, %v", d.made(), err)
	}
	d.mu.Lock()
	d.fail = map[string]string{"unprepare": "busy"}
	d.mu.Unlock()
	if err := a.Release(ctx, "b"); err == nil || !a.Held("b") || !strings.Contains(err.Error(), "busy") {
		t.Errorf("undone although the driver says no: %v", err)
	}
	d.mu.Lock()
	d.fail = nil
	d.mu.Unlock()
	if err := a.Release(ctx, "b"); err != nil || a.Held("b") {
		t.Errorf("%v", err)
	}
	if n := len(a.Pods()); n != 0 {
		t.Errorf("%d pods have devices", n)
	}
}

func TestDriverRefused(t *testing.T) { // S9.41
	root := short(t)
	a := start(t, root, fake.NewClientset())
	d := &draDriver{versions: []string{"v7.DRAPlugin"}}
	d.serveOn(t, root, "driver-reg.sock")
	if s := <-d.reported; s.PluginRegistered || !strings.Contains(s.Error, "none of services supported by the plugin") {
		t.Errorf("told %+v", s)
	}
	if a.lost("driver.example.com") {
		t.Error("it is known")
	}
}

// S9.43: slices of the node are removed at the start, and those of a driver that went and did not come back.
func TestSlicesOfLostDrivers(t *testing.T) {
	root, client := short(t), fake.NewClientset()
	wiped := make(chan string, 10)
	client.PrependReactor("delete-collection", "resourceslices",
		func(action ktesting.Action) (bool, runtime.Object, error) {
			wiped <- action.(ktesting.DeleteCollectionAction).GetListRestrictions().Fields.String()
			return true, nil, nil
		})
	a := start(t, root, client)
	if got := <-wiped; got != "spec.nodeName=n" {
		t.Errorf("at the start: %s", got)
	}
	d := &draDriver{}
	d.serveOn(t, root, "driver-reg.sock")
	<-d.reported
	a.until("it is connected", func() bool { return !a.lost("driver.example.com") })
	d.server.Stop()
	a.until("it is gone", func() bool { return a.lost("driver.example.com") })
	a.mu.Lock()
	if a.drivers["driver.example.com"].wiping == nil {
		t.Error("nobody waits for the driver to come back")
	}
	a.mu.Unlock()
	a.wipe(context.Background(), "driver.example.com") // as the timer does, after 30 s
	if got := <-wiped; got != "spec.driver=driver.example.com,spec.nodeName=n" {
		t.Errorf("later: %s", got)
	}
	again := &draDriver{}
	again.serveOn(t, root, "driver-reg.sock")
	<-again.reported
	a.until("it is back", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.drivers["driver.example.com"].wiping == nil
	})
	a.wipe(context.Background(), "driver.example.com") // a timer that came late
	if len(wiped) != 0 {
		t.Errorf("the slices of a driver that is back are removed: %s", <-wiped)
	}
}

// S9.70: the status shows the health that a driver reports, until the report expires.
func TestDriverHealth(t *testing.T) {
	root, client := short(t), fake.NewClientset(claimFor("one", "a"))
	a := start(t, root, client)
	d := &draDriver{}
	d.serveOn(t, root, "driver-reg.sock")
	<-d.reported
	pod := using("a", "one")
	if err := a.PrepareClaims(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	d.health <- &drahealthv1.NodeWatchResourcesResponse{Devices: []*drahealthv1.DeviceHealth{{
		Device: &drahealthv1.DeviceIdentifier{PoolName: "pool", DeviceName: "gpu"},
		Health: drahealthv1.HealthStatus_UNHEALTHY, Message: strings.Repeat("ä", 1000)}}}
	a.until("it is unhealthy", func() bool {
		s := a.Status(pod)["c"]
		return len(s) == 1 && s[0].Name == "claim:entry" && s[0].Resources[0].Health == "Unhealthy" &&
			s[0].Resources[0].ResourceID == "example.com/gpu=0"
	})
	if m := *a.Status(pod)["c"][0].Resources[0].Message; len(m) > maxHealthText || !strings.HasSuffix(m, "ä...") {
		t.Errorf("message of %d bytes", len(m))
	}
	a.takeHealth("driver.example.com", []*drahealthv1.DeviceHealth{{
		Device: &drahealthv1.DeviceIdentifier{PoolName: "pool", DeviceName: "gpu"},
		Health: drahealthv1.HealthStatus_HEALTHY}}, time.Now().Add(-healthFor))
	if got := a.Status(pod)["c"][0].Resources[0].Health; got != "Unknown" {
		t.Errorf("an old word counts: %s", got)
	}
}

// Devices with the same CDI name are one entry of the status, in which names must be unique: one of them that is
// unhealthy counts.
func TestHealthOfDevicesWithOneName(t *testing.T) {
	root, client := short(t), fake.NewClientset(claimFor("one", "a"))
	a := start(t, root, client)
	d := &draDriver{second: "second"}
	d.serveOn(t, root, "driver-reg.sock")
	<-d.reported
	pod := using("a", "one")
	if err := a.PrepareClaims(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	for _, unhealthy := range []string{"gpu", "second"} {
		msg := &drahealthv1.NodeWatchResourcesResponse{}
		for _, name := range []string{"gpu", "second"} {
			one := &drahealthv1.DeviceHealth{Device: &drahealthv1.DeviceIdentifier{PoolName: "pool", DeviceName: name},
				Health: drahealthv1.HealthStatus_HEALTHY}
			if name == unhealthy {
				one.Health, one.Message = drahealthv1.HealthStatus_UNHEALTHY, name+" is hot"
			}
			msg.Devices = append(msg.Devices, one)
		}
		d.health <- msg
		a.until(unhealthy+" is unhealthy", func() bool {
			s := a.Status(pod)["c"]
			return len(s) == 1 && len(s[0].Resources) == 1 && s[0].Resources[0].Health == "Unhealthy" &&
				s[0].Resources[0].ResourceID == "example.com/gpu=0" && s[0].Resources[0].Message != nil &&
				*s[0].Resources[0].Message == unhealthy+" is hot"
		})
	}
}
