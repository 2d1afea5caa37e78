// Package devicedriver is a driver of ResourceClaims for tests, made with upstream's helper for drivers, and a device
// plugin. Both give containers a variable by CDI or by the plugin's answer. They run in the process of the test, as
// they would in a pod of the node.
package devicedriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// Config has the directories of a driver.
type Config struct {
	Name       string // of the driver, a DNS name
	Node       string
	Kubeconfig string
	KubeletDir string   // of the node
	CDIDir     string   // where the runtime finds CDI specifications
	Devices    []string // names
}

// Driver is a running driver.
type Driver struct {
	cfg    Config
	helper *kubeletplugin.Helper

	mu    sync.Mutex
	calls []string
}

// Start registers a driver with the node and publishes its devices.
func Start(ctx context.Context, cfg Config) (*Driver, error) {
	rest, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	data := filepath.Join(cfg.KubeletDir, "plugins", cfg.Name)
	if err := errors.Join(os.MkdirAll(data, 0o750), os.MkdirAll(cfg.CDIDir, 0o755)); err != nil {
		return nil, fmt.Errorf("make the directories of the driver: %w", err)
	}
	d := &Driver{cfg: cfg}
	d.helper, err = kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(cfg.Name), kubeletplugin.NodeName(cfg.Node),
		kubeletplugin.KubeClient(client), kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(cfg.KubeletDir, "plugins_registry")))
	if err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}
	return d, d.Publish(ctx, nil)
}

// Publish publishes the devices, and the taints of some of them, by name.
func (d *Driver) Publish(ctx context.Context, taints map[string][]resourcev1.DeviceTaint) error {
	var list []resourcev1.Device
	for _, name := range d.cfg.Devices {
		list = append(list, resourcev1.Device{Name: name, Taints: taints[name],
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"model": {StringValue: new("test")}}})
	}
	return d.helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		d.cfg.Node: {Slices: []resourceslice.Slice{{Devices: list}}}}})
}

// Stop ends the driver.
func (d *Driver) Stop() { d.helper.Stop() }

// Calls returns the node's requests so far: "prepare CLAIM" and "unprepare CLAIM".
func (d *Driver) Calls() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.calls, ", ")
}

func (d *Driver) called(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, what)
}

func (d *Driver) file(claim types.UID) string {
	return filepath.Join(d.cfg.CDIDir, d.cfg.Name+"-"+string(claim)+".json")
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin: a CDI specification for each claim.
func (d *Driver) PrepareResourceClaims(_ context.Context, claims []*resourcev1.ResourceClaim) (
	map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		d.called("prepare " + c.Name)
		spec := cdi.Spec{Version: "0.6.0", Kind: d.cfg.Name + "/test"}
		var given []kubeletplugin.Device
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver != d.cfg.Name {
				continue
			}
			name := string(c.UID) + "-" + r.Device
			spec.Devices = append(spec.Devices, cdi.Device{Name: name, ContainerEdits: cdi.ContainerEdits{
				Env: []string{"CLAIM_DEVICE_" + strings.ToUpper(strings.ReplaceAll(r.Device, "-",
					"_")) + "=" + r.Pool}}})
			given = append(given, kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool,
				DeviceName: r.Device, CDIDeviceIDs: []string{spec.Kind + "=" + name}})
		}
		text, err := json.Marshal(spec)
		if err == nil {
			err = os.WriteFile(d.file(c.UID), text, 0o644)
		}
		results[c.UID] = kubeletplugin.PrepareResult{Devices: given, Err: err}
	}
	return results, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (
	map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, c := range claims {
		d.called("unprepare " + c.Name)
		err := os.Remove(d.file(c.UID))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		results[c.UID] = err
	}
	return results, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *Driver) HandleError(context.Context, error, string) {}

// WatchHealthStatus implements kubeletplugin.DRAPlugin: it reports nothing.
func (d *Driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// Plugin is a device plugin whose devices are all healthy.
type Plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	ids    []string
	server *grpc.Server
}

// StartPlugin serves a device plugin and registers it with the node.
func StartPlugin(ctx context.Context, kubeletDir, resource string, ids ...string) (*Plugin, error) {
	dir := filepath.Join(kubeletDir, "device-plugins")
	const name = "test.sock"
	_ = os.Remove(filepath.Join(dir, name))
	l, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		return nil, fmt.Errorf("serve the plugin: %w", err)
	}
	p := &Plugin{ids: ids, server: grpc.NewServer()}
	pluginapi.RegisterDevicePluginServer(p.server, p)
	go func() { _ = p.server.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the node: %w", err)
	}
	defer func() { _ = conn.Close() }()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{Version: pluginapi.Version,
		Endpoint: name, ResourceName: resource}, grpc.WaitForReady(true))
	if err != nil {
		p.server.Stop()
		return nil, fmt.Errorf("register with the node: %w", err)
	}
	return p, nil
}

// Stop ends the plugin.
func (p *Plugin) Stop() { p.server.Stop() }

// GetDevicePluginOptions implements the service.
func (p *Plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// ListAndWatch implements the service.
func (p *Plugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	var list []*pluginapi.Device
	for _, id := range p.ids {
		list = append(list, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

// Allocate implements the service: a variable, and /dev/null by another name.
func (p *Plugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs: map[string]string{"PLUGIN_DEVICES": strings.Join(c.DevicesIds, ",")},
			Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/test-device",
				Permissions: "rw"}}})
	}
	return out, nil
}
