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
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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
	Limit      int64  // volumes on the node; 0: any number
	Versions   []string
	// Without takes capabilities of the node service away.
	Without []csi.NodeServiceCapability_RPC_Type
	With    []csi.NodeServiceCapability_RPC_Type
	Mutable []string // parameters of volume attributes classes
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

	mu       sync.Mutex
	calls    []Call
	fault    func(ctx context.Context, method string, req any) error
	after    func(ctx context.Context, method string, req any) error
	staged   map[string]bool // volume and path
	attached map[string]bool // volume
	as       map[string]any  // size of a volume, source of a snapshot
	status   chan *registration.RegistrationStatus
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
	return &Driver{cfg: cfg, socket: socket, staged: map[string]bool{}, attached: map[string]bool{},
		as: map[string]any{}, status: make(chan *registration.RegistrationStatus, 16)}
}

// Serve serves the driver's services on a socket; others register it.
func Serve(cfg Config, socket string) (*Driver, error) {
	d := newDriver(cfg, socket)
	if err := os.MkdirAll(cfg.Data, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of volumes: %w", err)
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

// GetPluginInfo implements csi.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.cfg.Name, VendorVersion: "1"}, nil
}

// Probe implements csi.IdentityServer.
func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (
	*csi.GetPluginCapabilitiesResponse, error) {
	service := func(t csi.PluginCapability_Service_Type) *csi.PluginCapability {
		return &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}},
		}
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		service(csi.PluginCapability_Service_CONTROLLER_SERVICE),
		service(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE}}}}}, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.cfg.Node, MaxVolumesPerNode: d.cfg.Limit,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{TopologyKey: d.cfg.Node}}}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (
	*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range append([]csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, csi.NodeServiceCapability_RPC_EXPAND_VOLUME}, d.cfg.With...) {
		without := false
		for _, w := range d.cfg.Without {
			without = without || w == t
		}
		if !without {
			resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
				Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
		}
	}
	return resp, nil
}

// Path is where the data of a volume is: an entry of the directory of volumes, whatever the ID is.
func (d *Driver) Path(id string) string {
	name := filepath.Base(id)
	if !filepath.IsLocal(name) || name == "." {
		name = "_"
	}
	return filepath.Join(d.cfg.Data, name)
}

// NodeStageVolume implements csi.NodeServer: the volume must be there.
func (d *Driver) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse,
	error) {
	if _, err := os.Stat(d.Path(req.VolumeId)); err != nil {
		return nil, status.Errorf(codes.NotFound, "volume %s is not there", req.VolumeId)
	}
	if info, err := os.Stat(req.StagingTargetPath); err != nil || !info.IsDir() {
		return nil, status.Errorf(codes.InvalidArgument, "staging path %s is not a directory", req.StagingTargetPath)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.staged[req.VolumeId+" "+req.StagingTargetPath] = true
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *Driver) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (
	*csi.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.staged, req.VolumeId+" "+req.StagingTargetPath)
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// Staged is how many volumes are staged.
func (d *Driver) Staged() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.staged)
}

// NodePublishVolume implements csi.NodeServer: a bind mount of the directory, or of a loop device.
func (d *Driver) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (
	*csi.NodePublishVolumeResponse, error) {
	source := d.Path(req.VolumeId)
	if strings.HasPrefix(req.VolumeId, "csi-") && req.StagingTargetPath == "" { // an ephemeral one
		if err := os.MkdirAll(source, 0o755); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	if _, err := os.Stat(source); err != nil {
		return nil, status.Errorf(codes.NotFound, "volume %s is not there", req.VolumeId)
	}
	if mounted(req.TargetPath) {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	var err error
	if req.VolumeCapability.GetBlock() != nil {
		if source, err = attachLoop(source); err == nil {
			err = os.WriteFile(req.TargetPath, nil, 0o600)
		}
	} else if err = os.Mkdir(req.TargetPath, 0o750); errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		err = unix.Mount(source, req.TargetPath, "", unix.MS_BIND, "")
	}
	if err == nil && req.Readonly {
		err = unix.Mount("", req.TargetPath, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume implements csi.NodeServer.
func (d *Driver) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (
	*csi.NodeUnpublishVolumeResponse, error) {
	if mounted(req.TargetPath) {
		if err := unix.Unmount(req.TargetPath, unix.UMOUNT_NOFOLLOW); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	if err := os.Remove(req.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	source := d.Path(req.VolumeId)
	if info, err := os.Stat(source); err == nil && info.Mode().IsRegular() {
		if err := eachLoop(source, unix.LOOP_CLR_FD); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	if strings.HasPrefix(req.VolumeId, "csi-") && strings.Contains(req.TargetPath, "/pods/") &&
		!d.isStaged(req.VolumeId) {
		if err := os.RemoveAll(source); err != nil { // an ephemeral one
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *Driver) isStaged(volume string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k := range d.staged {
		if strings.HasPrefix(k, volume+" ") {
			return true
		}
	}
	return false
}

// NodeExpandVolume implements csi.NodeServer: a block device gets its new size.
func (d *Driver) NodeExpandVolume(_ context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse,
	error) {
	size := req.CapacityRange.GetRequiredBytes()
	file := d.Path(req.VolumeId)
	if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Size() < size {
		if err := errors.Join(os.Truncate(file, size), eachLoop(file, unix.LOOP_SET_CAPACITY)); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// NodeGetVolumeStats implements csi.NodeServer.
func (d *Driver) NodeGetVolumeStats(_ context.Context, req *csi.NodeGetVolumeStatsRequest) (
	*csi.NodeGetVolumeStatsResponse, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(req.VolumePath, &st); err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: int64(st.Blocks) * st.Bsize, Used: int64(st.Blocks-st.Bfree) * st.Bsize,
			Available: int64(st.Bavail) * st.Bsize},
		{Unit: csi.VolumeUsage_INODES, Total: int64(st.Files), Used: int64(st.Files - st.Ffree),
			Available: int64(st.Ffree)}}}, nil
}

func mounted(path string) bool {
	var own, above unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &own) != nil ||
		unix.Statx(unix.AT_FDCWD, filepath.Dir(path), 0, unix.STATX_MNT_ID, &above) != nil {
		return false
	}
	return own.Mnt_id != above.Mnt_id
}
