package csidriver

import (
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// required are the fields that the specification of CSI requires in a request. An empty volume ID would be the
// directory of all volumes.
var required = map[string][]protoreflect.Name{
	"CreateVolume":               {"name", "volume_capabilities"},
	"DeleteVolume":               {"volume_id"},
	"ControllerPublishVolume":    {"volume_id", "node_id", "volume_capability"},
	"ControllerUnpublishVolume":  {"volume_id"},
	"ValidateVolumeCapabilities": {"volume_id", "volume_capabilities"},
	"ControllerExpandVolume":     {"volume_id", "capacity_range"},
	"ControllerModifyVolume":     {"volume_id"},
	"CreateSnapshot":             {"name", "source_volume_id"},
	"DeleteSnapshot":             {"snapshot_id"},
	"NodeStageVolume":            {"volume_id", "staging_target_path", "volume_capability"},
	"NodeUnstageVolume":          {"volume_id", "staging_target_path"},
	"NodePublishVolume":          {"volume_id", "target_path", "volume_capability"},
	"NodeUnpublishVolume":        {"volume_id", "target_path"},
	"NodeGetVolumeStats":         {"volume_id", "volume_path"},
	"NodeExpandVolume":           {"volume_id", "volume_path"},
}

// check refuses a request that lacks something, or names something that is not there.
func (d *Driver) check(method string, req any) error {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	fields := m.ProtoReflect().Descriptor().Fields()
	for _, name := range required[method] {
		if !m.ProtoReflect().Has(fields.ByName(name)) {
			return status.Errorf(codes.InvalidArgument, "%s without %s", method, name)
		}
	}
	switch r := req.(type) {
	case *csi.CreateVolumeRequest:
		if s := r.VolumeContentSource.GetSnapshot(); s != nil {
			return d.exists(s.SnapshotId)
		}
		if v := r.VolumeContentSource.GetVolume(); v != nil {
			return d.exists(v.VolumeId)
		}
	case *csi.ControllerPublishVolumeRequest:
		if r.NodeId != d.cfg.Node {
			return status.Errorf(codes.NotFound, "node %s is not there", r.NodeId)
		}
		return d.exists(r.VolumeId)
	case *csi.ValidateVolumeCapabilitiesRequest:
		return d.exists(r.VolumeId)
	case *csi.NodeExpandVolumeRequest:
		return d.exists(r.VolumeId)
	}
	return nil
}

func (d *Driver) exists(id string) error {
	if _, err := os.Stat(d.Path(id)); err != nil {
		return status.Errorf(codes.NotFound, "volume or snapshot %s is not there", id)
	}
	return nil
}
