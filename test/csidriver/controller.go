package csidriver

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// largest is how many bytes a volume can have.
const largest = 1 << 40

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (
	*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	types := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME, csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME}
	if slices.Contains(d.cfg.With, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER) {
		types = append(types, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	}
	for _, t := range types {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
	}
	return resp, nil
}

// Make makes a volume: a directory, or a file for a block device.
func (d *Driver) Make(id string, block bool, size int64) error {
	path := d.Path(id)
	if !block {
		return os.MkdirAll(path, 0o755)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Truncate(size)
}

// CreateVolume implements csi.ControllerServer.
func (d *Driver) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	block, mount := false, false
	for _, c := range req.VolumeCapabilities {
		block, mount = block || c.GetBlock() != nil, mount || c.GetMount() != nil
	}
	if block && mount {
		return nil, status.Error(codes.InvalidArgument, "a volume is either a block device or a directory")
	}
	if err := d.mutable(req.MutableParameters); err != nil {
		return nil, err
	}
	id := "vol-" + filepath.Base(req.Name)
	size, limit := req.CapacityRange.GetRequiredBytes(), req.CapacityRange.GetLimitBytes()
	if size > largest {
		return nil, status.Errorf(codes.OutOfRange, "a volume has %d bytes at most, not %d", largest, size)
	}
	source := ""
	if s := req.VolumeContentSource.GetSnapshot(); s != nil {
		source = s.SnapshotId
	} else if v := req.VolumeContentSource.GetVolume(); v != nil {
		source = v.VolumeId
	}
	had := d.get(id)
	switch {
	case had.Ready && (had.Size < size || limit > 0 && had.Size > limit || had.Source != source):
		return nil, status.Errorf(codes.AlreadyExists, "%s is there already, with %d bytes, from %q", id, had.Size,
			had.Source)
	case had.Ready:
		size = had.Size
	default:
		if err := d.fill(id, block, size, source); err != nil {
			return nil, err
		}
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, CapacityBytes: size,
		VolumeContext: req.Parameters, ContentSource: req.VolumeContentSource,
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{d.cfg.Topology: d.cfg.Node}}}}}, nil
}

// fill makes a volume, with the data of another volume or of a snapshot.
func (d *Driver) fill(id string, block bool, size int64, source string) error {
	if err := os.RemoveAll(d.Path(id)); err != nil { // what an earlier attempt left
		return status.Error(codes.Internal, err.Error())
	}
	if source != "" {
		if s := d.get(source); s.Size > size {
			return status.Errorf(codes.OutOfRange, "%s has %d bytes, more than %d", source, s.Size, size)
		}
		if info, err := os.Stat(d.Path(source)); err == nil && info.IsDir() == block {
			return status.Errorf(codes.InvalidArgument, "%s: block %v, asked for %v", source, !info.IsDir(), block)
		}
	}
	if err := d.Make(id, block, size); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if source != "" {
		if err := copyVolume(d.Path(source), d.Path(id)); err != nil {
			return status.Errorf(codes.Internal, "copy %s: %v", source, err)
		}
	}
	return d.change(id, func(v *volume) { v.Size, v.Source, v.Ready = size, source, true })
}

// DeleteVolume implements csi.ControllerServer.
func (d *Driver) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := os.RemoveAll(d.Path(req.VolumeId)); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.DeleteVolumeResponse{}, d.forget(req.VolumeId)
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (
	*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: req.VolumeCapabilities}}, nil
}

// ControllerPublishVolume implements csi.ControllerServer.
func (d *Driver) ControllerPublishVolume(_ context.Context, req *csi.ControllerPublishVolumeRequest) (
	*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attached-as": req.VolumeId}},
		d.change(req.VolumeId, func(v *volume) { v.Attached = true })
}

// ControllerUnpublishVolume implements csi.ControllerServer. A volume that is still staged must not be detached.
func (d *Driver) ControllerUnpublishVolume(_ context.Context, req *csi.ControllerUnpublishVolumeRequest) (
	*csi.ControllerUnpublishVolumeResponse, error) {
	v := d.get(req.VolumeId)
	if len(v.Staged) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is still staged", req.VolumeId)
	}
	if !v.Attached { // maybe it is deleted
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	return &csi.ControllerUnpublishVolumeResponse{}, d.change(req.VolumeId, func(v *volume) { v.Attached = false })
}

// ControllerExpandVolume implements csi.ControllerServer.
func (d *Driver) ControllerExpandVolume(_ context.Context, req *csi.ControllerExpandVolumeRequest) (
	*csi.ControllerExpandVolumeResponse, error) {
	size := req.CapacityRange.GetRequiredBytes()
	if size > largest {
		return nil, status.Errorf(codes.OutOfRange, "a volume has %d bytes at most, not %d", largest, size)
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true},
		d.change(req.VolumeId, func(v *volume) { v.Size = max(v.Size, size) })
}

// ControllerModifyVolume implements csi.ControllerServer: only the parameters of the driver's configuration are known.
func (d *Driver) ControllerModifyVolume(_ context.Context, req *csi.ControllerModifyVolumeRequest) (
	*csi.ControllerModifyVolumeResponse, error) {
	if err := d.mutable(req.MutableParameters); err != nil {
		return nil, err
	}
	return &csi.ControllerModifyVolumeResponse{}, d.exists(req.VolumeId)
}

func (d *Driver) mutable(parameters map[string]string) error {
	for name := range parameters { // any order: each by itself
		if !slices.Contains(d.cfg.Mutable, name) {
			return status.Errorf(codes.InvalidArgument, "parameter %q cannot be changed", name)
		}
	}
	return nil
}

// GetCapacity implements csi.ControllerServer.
func (d *Driver) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: largest}, nil
}
