// Package csidriver is a CSI driver for tests. Its volumes are directories and files of this machine, its snapshots
// copies of them. It runs in the process of the test, registers with the node as node-driver-registrar does, and can be
// set to hang, to fail, to respond late, and to return false data.
package csidriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// TopologyKey is the label that the driver gives to its node.
const TopologyKey = "topology.test.carob.dev/node"

// Config is the directory and the capabilities of a driver.
type Config struct {
	Name       string // of the driver
	Node       string // what it calls the node
	KubeletDir string // of the node
	Data       string // directory of the volumes
	State      string // file of what is remembered of the volumes; "": it is not kept over a restart
	Topology   string // the label that the driver gives to its node; "": TopologyKey
	Limit      int64  // volumes on the node; 0: any number
	Versions   []string
	// Without takes capabilities of the node service away.
	Without []csi.NodeServiceCapability_RPC_Type
	With    []csi.NodeServiceCapability_RPC_Type
	Mutable []string // parameters of volume attributes classes
	// Lifecycle refuses calls in an order that the specification of CSI does not allow.
	Lifecycle bool
	// Called, unless nil, is called after each call, by several goroutines.
	Called func(Call)
}

// Driver is a running driver.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	registration.UnsafeRegistrationServer
	cfg     Config
	servers []*grpc.Server
	socket  string

	mu      sync.Mutex
	calls   []Call
	fault   func(ctx context.Context, method string, req any) error
	after   func(ctx context.Context, method string, req any) error
	volumes map[string]*volume // and snapshots
	disks   sync.Mutex         // of the loop devices
	status  chan *registration.RegistrationStatus
}

// Call is one call that the driver got, and what it answered.
type Call struct {
	Method  string // such as NodeStageVolume
	Request any
	Err     error
}

func newDriver(cfg Config, socket string) *Driver {
	if cfg.Versions == nil {
		cfg.Versions = []string{"1.0.0"}
	}
	if cfg.Topology == "" {
		cfg.Topology = TopologyKey
	}
	return &Driver{cfg: cfg, socket: socket, volumes: map[string]*volume{},
		status: make(chan *registration.RegistrationStatus, 16)}
}

// Serve serves the driver's services on a socket; others register it.
func Serve(cfg Config, socket string) (*Driver, error) {
	d := newDriver(cfg, socket)
	if err := os.MkdirAll(cfg.Data, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of volumes: %w", err)
	}
	if err := d.load(); err != nil {
		return nil, err
	}
	if err := d.serve(socket, d.services); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Driver) services(s *grpc.Server) {
	csi.RegisterIdentityServer(s, d)
	csi.RegisterControllerServer(s, d)
	csi.RegisterNodeServer(s, d)
}

// Start serves the driver and registers it with the node.
func Start(cfg Config) (*Driver, error) {
	dir := filepath.Join(cfg.KubeletDir, "plugins", cfg.Name)
	d := newDriver(cfg, filepath.Join(dir, "csi.sock"))
	registry := filepath.Join(cfg.KubeletDir, "plugins_registry")
	if err := errors.Join(os.MkdirAll(dir, 0o750), os.MkdirAll(registry, 0o755), os.MkdirAll(cfg.Data,
		0o755)); err != nil {
		return nil, fmt.Errorf("make the directories of the driver: %w", err)
	}
	if err := d.load(); err != nil {
		return nil, err
	}
	err := d.serve(d.socket, d.services)
	if err == nil {
		err = d.serve(filepath.Join(registry, cfg.Name+"-reg.sock"), func(s *grpc.Server) {
			registration.RegisterRegistrationServer(s, d)
		})
	}
	if err != nil {
		d.Stop()
		return nil, err
	}
	return d, nil
}

// Socket is where the driver's services are.
func (d *Driver) Socket() string { return d.socket }

// Stop ends the driver and removes its sockets; volumes stay mounted.
func (d *Driver) Stop() {
	for _, s := range d.servers {
		s.Stop()
	}
}

func (d *Driver) serve(path string, register func(*grpc.Server)) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an old socket: %w", err)
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	register(s)
	// Under another name first: a client that finds the socket can connect.
	l, err := net.Listen("unix", filepath.Join(filepath.Dir(path), "."+filepath.Base(path)))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := os.Rename(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)), path); err != nil {
		return fmt.Errorf("name the socket: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	d.servers = append(d.servers, s)
	go func() {
		_ = s.Serve(l)
		_ = os.Remove(path)
	}()
	return nil
}

// Fault has f called before each call is served: an error is the answer, and nothing is done. nil: no faults.
func (d *Driver) Fault(f func(ctx context.Context, method string, req any) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = f
}

// After has f called after each call that was served: an error is the answer all the same.
func (d *Driver) After(f func(ctx context.Context, method string, req any) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.after = f
}

// Calls are the calls so far of some methods, or of all except read-only ones.
func (d *Driver) Calls(methods ...string) []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []Call
	for _, c := range d.calls {
		wanted := len(methods) == 0 && !strings.Contains(c.Method, "Get") && c.Method != "Probe" &&
			c.Method != "NotifyRegistrationStatus"
		for _, m := range methods {
			wanted = wanted || c.Method == m
		}
		if wanted {
			list = append(list, c)
		}
	}
	return list
}

// Names are the methods of Calls, those that failed with the code of their error.
func (d *Driver) Names(methods ...string) string {
	var names []string
	for _, c := range d.Calls(methods...) {
		name := c.Method
		if c.Err != nil {
			name += ":" + status.Code(c.Err).String()
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// Registered returns the node's notifications about the registration, in order.
func (d *Driver) Registered() <-chan *registration.RegistrationStatus { return d.status }

func (d *Driver) intercept(
	ctx context.Context,
	req any,
	info *grpc.UnaryServerInfo,
	h grpc.UnaryHandler,
) (any, error) {
	method := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:]
	d.mu.Lock()
	fault, after := d.fault, d.after
	d.mu.Unlock()
	var resp any
	var err error
	if fault != nil {
		err = fault(ctx, method, req)
	}
	if err == nil {
		err = d.check(method, req)
	}
	if err == nil {
		err = d.lifecycle(req)
	}
	if err == nil {
		resp, err = h(ctx, req)
	}
	if err == nil && after != nil {
		err = after(ctx, method, req)
	}
	d.mu.Lock()
	d.calls = append(d.calls, Call{method, req, err})
	d.mu.Unlock()
	if d.cfg.Called != nil {
		d.cfg.Called(Call{method, req, err})
	}
	return resp, err
}

// GetInfo implements the registration.
func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.cfg.Name, Endpoint: d.socket,
		SupportedVersions: d.cfg.Versions}, nil
}

// NotifyRegistrationStatus implements the registration.
func (d *Driver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	select {
	case d.status <- s:
	default:
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// Path is where the data of a volume is: an entry of the directory of volumes, whatever the ID is.
func (d *Driver) Path(id string) string {
	name := filepath.Base(id)
	if !filepath.IsLocal(name) || name == "." {
		name = "_"
	}
	return filepath.Join(d.cfg.Data, name)
}
