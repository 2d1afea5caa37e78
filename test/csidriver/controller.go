package csidriver

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (
	*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME, csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME} {
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
	block := false
	for _, c := range req.VolumeCapabilities {
		block = block || c.GetBlock() != nil
	}
	id := "vol-" + filepath.Base(req.Name)
	size := req.CapacityRange.GetRequiredBytes()
	if err := d.made(id, size); err != nil {
		return nil, err
	}
	if err := d.Make(id, block, size); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	source := ""
	if s := req.VolumeContentSource.GetSnapshot(); s != nil {
		source = s.SnapshotId
	} else if v := req.VolumeContentSource.GetVolume(); v != nil {
		source = v.VolumeId
	}
	if source != "" {
		if err := copyVolume(d.Path(source), d.Path(id)); err != nil {
			return nil, status.Errorf(codes.Internal, "copy %s: %v", source, err)
		}
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, CapacityBytes: size,
		VolumeContext: req.Parameters, ContentSource: req.VolumeContentSource,
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{TopologyKey: d.cfg.Node}}}}}, nil
}

// DeleteVolume implements csi.ControllerServer.
func (d *Driver) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := os.RemoveAll(d.Path(req.VolumeId)); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	d.removed(req.VolumeId)
	return &csi.DeleteVolumeResponse{}, nil
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
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attached[req.VolumeId] = true
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attached-as": req.VolumeId}}, nil
}

// ControllerUnpublishVolume implements csi.ControllerServer. A volume that is still staged must not be detached.
func (d *Driver) ControllerUnpublishVolume(_ context.Context, req *csi.ControllerUnpublishVolumeRequest) (
	*csi.ControllerUnpublishVolumeResponse, error) {
	if d.isStaged(req.VolumeId) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is still staged", req.VolumeId)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.attached, req.VolumeId)
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// ControllerExpandVolume implements csi.ControllerServer.
func (d *Driver) ControllerExpandVolume(_ context.Context, req *csi.ControllerExpandVolumeRequest) (
	*csi.ControllerExpandVolumeResponse, error) {
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: req.CapacityRange.GetRequiredBytes(),
		NodeExpansionRequired: true}, nil
}

// ControllerModifyVolume implements csi.ControllerServer: only the parameters of the driver's configuration are known.
func (d *Driver) ControllerModifyVolume(_ context.Context, req *csi.ControllerModifyVolumeRequest) (
	*csi.ControllerModifyVolumeResponse, error) {
	for name := range req.MutableParameters { // any order: each by itself
		if !slices.Contains(d.cfg.Mutable, name) {
			return nil, status.Errorf(codes.InvalidArgument, "parameter %q cannot be changed", name)
		}
	}
	return &csi.ControllerModifyVolumeResponse{}, d.exists(req.VolumeId)
}

// GetCapacity implements csi.ControllerServer.
func (d *Driver) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: 1 << 40}, nil
}

// CreateSnapshot implements csi.ControllerServer.
func (d *Driver) CreateSnapshot(_ context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse,
	error) {
	id := "snap-" + strings.TrimPrefix(filepath.Base(req.Name), "snapshot-")
	if err := d.made(id, req.SourceVolumeId); err != nil {
		return nil, err
	}
	if err := copyVolume(d.Path(req.SourceVolumeId), d.Path(id)); err != nil {
		return nil, status.Errorf(codes.Internal, "copy %s: %v", req.SourceVolumeId, err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: id, SourceVolumeId: req.SourceVolumeId,
		CreationTime: timestamppb.Now(), ReadyToUse: true}}, nil
}

// DeleteSnapshot implements csi.ControllerServer.
func (d *Driver) DeleteSnapshot(_ context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse,
	error) {
	if err := os.RemoveAll(d.Path(req.SnapshotId)); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	d.removed(req.SnapshotId)
	return &csi.DeleteSnapshotResponse{}, nil
}
