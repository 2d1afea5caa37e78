package devices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const patience = 30 * time.Second

// agent is a Manager that runs.
type agent struct {
	*Manager
	*testing.T
	root    string
	stop    func()
	changed chan struct{} // gets a token when something may have changed
}

// short makes a directory whose sockets have names that are short enough.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T, root string, client *fake.Clientset, pods ...*corev1.Pod) *agent {
	t.Helper()
	return startWith(t, Config{Root: root, Client: client}, pods...)
}

func startWith(t *testing.T, cfg Config, pods ...*corev1.Pod) *agent {
	t.Helper()
	root := cfg.Root
	cfg.State, cfg.Node, cfg.Logger = filepath.Join(root, "devices.json"), "n", klog.Background()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{Manager: m, T: t, root: root, changed: make(chan struct{}, 1)}
	poke := func() {
		select {
		case a.changed <- struct{}{}:
		default:
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- m.Run(ctx, Hooks{PodChanged: func(types.UID) { poke() }, NodeChanged: poke,
			Pods: func() []*corev1.Pod { return pods }})
	}()
	stopped := false
	a.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(a.stop)
	return a
}

// until waits until ok returns true; changes are announced, or found by the next check.
func (a *agent) until(what string, ok func() bool) {
	a.Helper()
	end := time.After(patience)
	for !ok() {
		select {
		case <-a.changed:
		case <-time.After(10 * time.Millisecond):
		case <-end:
			a.Fatalf("it never happened: %s", what)
		}
	}
}

func (a *agent) allocatable(n int64) {
	a.Helper()
	a.until(fmt.Sprintf("%d devices", n), func() bool {
		_, free := a.Amounts()
		q := free["example.com/gpu"]
		return q.Value() == n
	})
}

// plugin is a device plugin.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	registration.UnimplementedRegistrationServer
	mu        sync.Mutex
	lists     chan []*pluginapi.Device
	reply     func(ids []string) (*pluginapi.ContainerAllocateResponse, error)
	requested [][]string
	preStart  int
	server    *grpc.Server
	reported  chan *registration.RegistrationStatus
	simple    bool // it requires no call before a start
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: !p.simple, GetPreferredAllocationAvailable: true}, nil
}

func (p *plugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case list := <-p.lists:
			if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func (p *plugin) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (
	*pluginapi.PreferredAllocationResponse, error) {
	ids := r.ContainerRequests[0].AvailableDeviceIDs
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{
		{DeviceIDs: ids[len(ids)-1:]}}}, nil // the last one
}

func (p *plugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := r.ContainerRequests[0].DevicesIds
	p.requested = append(p.requested, ids)
	one := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"GPU": strings.Join(ids, ",")}}
	if p.reply != nil {
		var err error
		if one, err = p.reply(ids); err != nil {
			return nil, err
		}
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{one}}, nil
}

func (p *plugin) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (
	*pluginapi.PreStartContainerResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.preStart++
	return &pluginapi.PreStartContainerResponse{}, nil
}

func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: "DevicePlugin", Name: "example.com/gpu",
		SupportedVersions: []string{"v1beta1"}}, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	p.reported <- s
	return &registration.RegistrationStatusResponse{}, nil
}

func dev(health string, ids ...string) []*pluginapi.Device {
	var list []*pluginapi.Device
	for _, id := range ids {
		list = append(list, &pluginapi.Device{ID: id, Health: health})
	}
	return list
}

// serveOn serves a plugin on a socket.
func (p *plugin) serveOn(t *testing.T, socket string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	p.lists, p.reported = make(chan []*pluginapi.Device, 10), make(chan *registration.RegistrationStatus, 10)
	p.server = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(p.server, p)
	registration.RegisterRegistrationServer(p.server, p)
	go func() { _ = p.server.Serve(l) }()
	t.Cleanup(p.server.Stop)
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// register registers by the kubelet's socket.
func (a *agent) register(req *pluginapi.RegisterRequest) error {
	a.Helper()
	client := pluginapi.NewRegistrationClient(dial(a.T, filepath.Join(a.root, "device-plugins", registrySocket)))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := client.Register(ctx, req, grpc.WaitForReady(true))
	return err
}

func (a *agent) plug(p *plugin, name string, list []*pluginapi.Device) {
	a.Helper()
	a.until("the agent serves", func() bool {
		_, err := os.Stat(filepath.Join(a.root, "device-plugins", registrySocket))
		return err == nil
	})
	p.serveOn(a.T, filepath.Join(a.root, "device-plugins", name))
	if err := a.register(&pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: name,
		ResourceName: "example.com/gpu"}); err != nil {
		a.Fatal(err)
	}
	p.lists <- list
}

func podWith(uid string, n int64) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, Namespace: "default"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"example.com/gpu": *resource.NewQuantity(n, resource.DecimalSI)}}}}}}
}

// S8.2 to S8.12, S17.E: what a pod has survives the agent and the plugin, and a pod waits instead of failing.
func TestDevicePlugin(t *testing.T) {
	root := short(t)
	a := start(t, root, fake.NewClientset())
	p := &plugin{}
	a.plug(p, "p.sock", dev(pluginapi.Healthy, "d0", "d1"))
	a.allocatable(2)
	pod := podWith("a", 1)
	if err := a.Allocate(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	options, err := a.Options(context.Background(), pod, &pod.Spec.Containers[0])
	if err != nil || len(options.Env) != 1 || options.Env[0].Value != "d1" { // which the plugin prefers
		t.Fatalf("%+v, %v", options, err)
	}
	if p.preStart != 1 {
		t.Errorf("PreStartContainer was called %d times", p.preStart)
	}
	if err := a.Allocate(context.Background(), podWith("b", 2)); err == nil ||
		!strings.Contains(err.Error(), "Requested: 2, Available: 1") {
		t.Errorf("too many: %v", err)
	}

	p.lists <- []*pluginapi.Device{{ID: "d0", Health: pluginapi.Healthy}, {ID: "d1", Health: pluginapi.Unhealthy}}
	a.allocatable(1)
	if got := a.Status(pod)["c"]; len(got) != 1 || got[0].Name != "example.com/gpu" ||
		got[0].Resources[0] != (corev1.ResourceHealth{ResourceID: "d1", Health: "Unhealthy"}) {
		t.Errorf("health: %+v", got)
	}
	p.lists <- dev(pluginapi.Healthy, "d0", "d1")
	a.allocatable(2)

	p.server.Stop() // the plugin dies
	a.allocatable(0)
	if all, _ := a.Amounts(); all.Name("example.com/gpu", resource.DecimalSI).Value() != 2 {
		t.Errorf("capacity: %v", all)
	}
	if !a.Waits(podWith("c", 1), "example.com/gpu") {
		t.Error("a pod would be refused though it only has to wait")
	}
	if err := a.Allocate(context.Background(), podWith("c", 1)); err == nil ||
		err.Error() != "cannot allocate unregistered device example.com/gpu" {
		t.Errorf("while the plugin is away: %v", err)
	}
	// S8.26: the plugin must be called before each start of a container
	starts := func(want string) {
		t.Helper()
		o, err := a.Options(context.Background(), pod, &pod.Spec.Containers[0])
		if err == nil && want != "" || err != nil && err.Error() != want || err == nil && len(o.Env) != 1 {
			t.Errorf("a container starts again: %+v, %v, want %q", o, err, want)
		}
	}
	const away = "device plugin example.com/gpu is not running: it must be called before each start of a container"
	starts(away)

	a.stop() // and the agent; the machine starts again
	a = start(t, root, fake.NewClientset())
	a.allocatable(0)
	starts(away)
	simple := &plugin{simple: true}
	a.plug(simple, "simple.sock", dev(pluginapi.Healthy, "d0", "d1"))
	a.allocatable(2)
	starts("")
	simple.server.Stop()
	a.allocatable(0)
	starts("") // this one need not be called
	p2 := &plugin{}
	a.plug(p2, "again.sock", dev(pluginapi.Healthy, "d0", "d1"))
	a.allocatable(2)
	if err := a.Allocate(context.Background(), pod); err != nil || len(p2.requested) != 0 {
		t.Errorf("it was allocated again: %v, %v", p2.requested, err)
	}
	if err := a.Allocate(context.Background(), podWith("c", 1)); err != nil ||
		!slices.Equal(p2.requested[0], []string{"d0"}) {
		t.Errorf("the other pod: %v, %v", p2.requested, err)
	}
	if !a.Held("a") || len(a.Pods()) != 2 {
		t.Error("nobody has devices")
	}
	if err := a.Release(context.Background(), "a"); err != nil || a.Held("a") {
		t.Errorf("released: %v", err)
	}
	if err := a.Allocate(context.Background(), podWith("d", 1)); err != nil {
		t.Errorf("a device that was given back: %v", err)
	}
}

// S8.5, S8.6: by the plugin watcher; a second plugin takes over, and the first one again when it goes.
func TestPluginWatcher(t *testing.T) {
	root := short(t)
	a := start(t, root, fake.NewClientset())
	old, next := &plugin{}, &plugin{}
	old.serveOn(t, filepath.Join(root, "plugins_registry", "sub", "old.sock"))
	if s := <-old.reported; !s.PluginRegistered {
		t.Fatalf("told %+v", s)
	}
	old.lists <- dev(pluginapi.Healthy, "d0")
	a.allocatable(1)
	next.serveOn(t, filepath.Join(root, "plugins_registry", "next.sock"))
	<-next.reported
	next.lists <- dev(pluginapi.Healthy, "d0", "d1", "d2")
	a.allocatable(3)
	old.lists <- dev(pluginapi.Healthy, "d0", "d1") // nothing reads it now, but it counts later
	a.until("the older plugin's list is there", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.endpoints["example.com/gpu"][0].last) == 2
	})
	next.server.Stop() // removes its socket
	a.allocatable(2)
	old.server.Stop()
	a.allocatable(0)
}

// A plugin whose devices change their health all the time costs no writes: the state file does not contain it.
func TestFlappingHealth(t *testing.T) {
	a := start(t, short(t), fake.NewClientset())
	p := &plugin{}
	a.plug(p, "p.sock", dev(pluginapi.Healthy, "d0", "d1", "d2"))
	a.allocatable(3)
	if err := a.Allocate(context.Background(), podWith("a", 1)); err != nil {
		t.Fatal(err)
	}
	file := func() os.FileInfo {
		info, err := os.Stat(filepath.Join(a.root, "devices.json"))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	was := file()
	for range 20 {
		p.lists <- dev(pluginapi.Unhealthy, "d0", "d1", "d2")
		a.allocatable(0)
		p.lists <- dev(pluginapi.Healthy, "d2", "d1", "d0")
		a.allocatable(3)
	}
	if !os.SameFile(was, file()) {
		t.Error("the state file was written again")
	}
	p.lists <- dev(pluginapi.Healthy, "d0", "d1")
	a.allocatable(2)
	a.until("the file without a device", func() bool { return !os.SameFile(was, file()) })
}

// S8.2, S8.3: invalid registrations are refused.
func TestInvalidRegistrations(t *testing.T) {
	a := start(t, short(t), fake.NewClientset())
	for _, c := range []struct{ version, endpoint, resource, want string }{
		{"v1", "p.sock", "example.com/gpu", "requested API version \"v1\" is not supported by kubelet"},
		{"v1beta1", "p.sock", "gpu", "the ResourceName \"gpu\" is invalid"},
		{"v1beta1", "p.sock", "kubernetes.io/gpu", "is invalid"},
		{"v1beta1", "p.sock", "x.kubernetes.io/gpu", "is invalid"},
		{"v1beta1", "p.sock", "example.com/" + strings.Repeat("g", 64), "is invalid"},
		{"v1beta1", "p.sock", "example.com/g\npu", "is invalid"},
		{"v1beta1", "../../etc/p.sock", "example.com/gpu", "is not a name of a socket"},
		{"v1beta1", "/run/p.sock", "example.com/gpu", "is not a name of a socket"},
		{"v1beta1", registrySocket, "example.com/gpu", "is not a name of a socket"},
		{"v1beta1", "..", "example.com/gpu", "is not a name of a socket"},
		{"v1beta1", "", "example.com/gpu", "is empty"},
	} {
		a.until("the agent serves", func() bool {
			_, err := os.Stat(filepath.Join(a.root, "device-plugins", registrySocket))
			return err == nil
		})
		err := a.register(&pluginapi.RegisterRequest{Version: c.version, Endpoint: c.endpoint,
			ResourceName: c.resource})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q %q %.40q: %v, want %s", c.version, c.endpoint, c.resource, err, c.want)
		}
	}
}

// A kubelet that serves the directory is not disturbed.
func TestSocketOfAnotherKubeletStays(t *testing.T) {
	root := short(t)
	theirs := filepath.Join(root, "device-plugins", registrySocket)
	(&plugin{}).serveOn(t, theirs)
	a := start(t, root, fake.NewClientset())
	a.until("carob gives way", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.registry != nil
	})
	if conn, err := net.Dial("unix", theirs); err != nil {
		t.Errorf("its socket is gone: %v", err)
	} else {
		_ = conn.Close()
	}
}

// What a hostile plugin answers is refused, and its devices are free again.
func TestHostileAnswers(t *testing.T) {
	a := start(t, short(t), fake.NewClientset())
	p := &plugin{}
	a.plug(p, "p.sock", dev(pluginapi.Healthy, "d0"))
	a.allocatable(1)
	many := map[string]string{}
	for i := range maxEntries + 1 {
		many[fmt.Sprintf("V%d", i)] = ""
	}
	for name, r := range map[string]*pluginapi.ContainerAllocateResponse{
		"variable with =":         {Envs: map[string]string{"A=B": "c"}},
		"variable without a name": {Envs: map[string]string{"": "c"}},
		"value with NUL":          {Envs: map[string]string{"A": "b\x00c"}},
		"name with a line":        {Envs: map[string]string{"A\nB": "c"}},
		"too many variables":      {Envs: many},
		"huge value":              {Envs: map[string]string{"A": strings.Repeat("x", maxValue+1)}},
		"relative mount":          {Mounts: []*pluginapi.Mount{{ContainerPath: "x", HostPath: "/tmp"}}},
		"mount with ..":           {Mounts: []*pluginapi.Mount{{ContainerPath: "/x/../../etc", HostPath: "/tmp"}}},
		"host path with ..":       {Mounts: []*pluginapi.Mount{{ContainerPath: "/x", HostPath: "/tmp/../etc"}}},
		"path with NUL":           {Mounts: []*pluginapi.Mount{{ContainerPath: "/x\x00y", HostPath: "/tmp"}}},
		"long path": {Mounts: []*pluginapi.Mount{{ContainerPath: "/" + strings.Repeat("x", 5000),
			HostPath: "/t"}}},
		"device without a path": {Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/null", Permissions: "r"}}},
		"permissions": {Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/d",
			Permissions: "rwx"}}},
		"no permissions":           {Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/d"}}},
		"CDI name":                 {CdiDevices: []*pluginapi.CDIDevice{{Name: "../../etc/passwd"}}},
		"CDI name without a class": {CdiDevices: []*pluginapi.CDIDevice{{Name: "vendor=x"}}},
		"annotation":               {Annotations: map[string]string{"a b": "c"}},
	} {
		p.reply = func([]string) (*pluginapi.ContainerAllocateResponse, error) { return r, nil }
		if err := a.Allocate(context.Background(), podWith("a", 1)); err == nil {
			t.Errorf("%s is taken", name)
		}
		if a.Held("a") {
			t.Fatalf("%s: the pod has the device", name)
		}
	}
	p.reply = func([]string) (*pluginapi.ContainerAllocateResponse, error) { return nil, errors.New("out of order") }
	if err := a.Allocate(context.Background(), podWith("a", 1)); err == nil ||
		err.Error() != "device plugin example.com/gpu: out of order" {
		t.Errorf("its own error: %v", err)
	}
	for name, list := range map[string][]*pluginapi.Device{"an id with a line": dev(pluginapi.Healthy, "a\nb"),
		"no id": dev(pluginapi.Healthy, ""), "a long id": dev(pluginapi.Healthy, strings.Repeat("x", maxID+1))} {
		if _, err := listed(list); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add("A", "b", "/x", "rw", "v.com/c=d")
	f.Fuzz(func(t *testing.T, name, value, file, permissions, cdi string) {
		d, err := answer(&pluginapi.ContainerAllocateResponse{Envs: map[string]string{name: value},
			Mounts:      []*pluginapi.Mount{{ContainerPath: file, HostPath: file}},
			Devices:     []*pluginapi.DeviceSpec{{ContainerPath: file, HostPath: file, Permissions: permissions}},
			Annotations: map[string]string{name: value}, CdiDevices: []*pluginapi.CDIDevice{{Name: cdi}}})
		if err != nil {
			return
		}
		if strings.ContainsAny(d.Env[0].Name, "=\x00\n") || strings.Contains(d.Env[0].Value, "\x00") ||
			!filepath.IsAbs(d.Mounts[0].HostPath) || strings.Contains(d.Mounts[0].HostPath+"/", "/../") ||
			strings.ContainsRune(file, 0) || !strings.Contains(d.CDI[0], "=") {
			t.Errorf("taken: %+v", d)
		}
	})
}

// A state file that is damaged is put aside.
func TestDamagedState(t *testing.T) {
	root := short(t)
	file := filepath.Join(root, "devices.json")
	for _, text := range []string{"{", "", `{"Version":7}`, "null"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := New(Config{Root: root, State: file, Logger: klog.Background()})
		if err != nil || len(m.Pods()) != 0 {
			t.Errorf("%q: %v", text, err)
		}
		if got, err := os.ReadFile(file + ".damaged"); err != nil || string(got) != text {
			t.Errorf("%q is lost: %v", text, err)
		}
	}
}

func TestPodResources(t *testing.T) { // S12.90 to S12.92
	root, client := short(t), fake.NewClientset(claimFor("one", "a"))
	pod := using("a", "one")
	pod.Spec.Containers[0].Resources.Limits = podWith("a", 1).Spec.Containers[0].Resources.Limits
	a := start(t, root, client, pod)
	p, d := &plugin{}, &draDriver{}
	a.plug(p, "p.sock", []*pluginapi.Device{{ID: "d0", Health: pluginapi.Healthy,
		Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1}}}}})
	d.serveOn(t, root, "driver-reg.sock")
	<-d.reported
	a.allocatable(1)
	ctx := context.Background()
	if err := errors.Join(a.PrepareClaims(ctx, pod), a.Allocate(ctx, pod)); err != nil {
		t.Fatal(err)
	}
	api := podresources.NewPodResourcesListerClient(dial(t, filepath.Join(root, "pod-resources", "kubelet.sock")))
	list, err := api.List(ctx, &podresources.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil || len(list.PodResources) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	c := list.PodResources[0].Containers[0]
	if len(c.Devices) != 1 || c.Devices[0].ResourceName != "example.com/gpu" || c.Devices[0].DeviceIds[0] != "d0" ||
		c.Devices[0].Topology.Nodes[0].ID != 1 || len(c.DynamicResources) != 1 ||
		c.DynamicResources[0].ClaimName != "one" ||
		c.DynamicResources[0].ClaimResources[0].CdiDevices[0].Name != "example.com/gpu=0" {
		t.Errorf("listed: %v", c)
	}
	got, err := api.Get(ctx, &podresources.GetPodResourcesRequest{PodName: "a", PodNamespace: "default"})
	if err != nil || len(got.PodResources.Containers) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := api.Get(ctx, &podresources.GetPodResourcesRequest{PodName: "b",
		PodNamespace: "default"}); err == nil ||
		!strings.Contains(err.Error(), "pod b in namespace default not found") {
		t.Error(err)
	}
	all, err := api.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil || len(all.Devices) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	limited := false
	for range 1000 {
		_, err := api.Get(ctx, &podresources.GetPodResourcesRequest{})
		limited = limited || status.Code(err) == codes.ResourceExhausted
	}
	if !limited {
		t.Error("nobody limits the rate")
	}
}
