package csidriver

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// CreateSnapshot implements csi.ControllerServer: a copy of the volume's data.
func (d *Driver) CreateSnapshot(_ context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse,
	error) {
	id := "snap-" + strings.TrimPrefix(filepath.Base(req.Name), "snapshot-")
	had := d.get(id)
	if had.Ready && had.Source != req.SourceVolumeId {
		return nil, status.Errorf(codes.AlreadyExists, "%s is there already, of %s", id, had.Source)
	}
	if !had.Ready {
		if err := d.exists(req.SourceVolumeId); err != nil {
			return nil, err
		}
		if err := os.RemoveAll(d.Path(id)); err != nil { // what an earlier attempt left
			return nil, status.Error(codes.Internal, err.Error())
		}
		if err := copyVolume(d.Path(req.SourceVolumeId), d.Path(id)); err != nil {
			return nil, status.Errorf(codes.Internal, "copy %s: %v", req.SourceVolumeId, err)
		}
		had = volume{Size: d.get(req.SourceVolumeId).Size, Source: req.SourceVolumeId, Made: time.Now(), Ready: true,
			Snapshot: true}
		if err := d.change(id, func(v *volume) { *v = had }); err != nil {
			return nil, err
		}
	}
	return &csi.CreateSnapshotResponse{Snapshot: had.snapshot(id)}, nil
}

func (v *volume) snapshot(id string) *csi.Snapshot {
	return &csi.Snapshot{SnapshotId: id, SourceVolumeId: v.Source, CreationTime: timestamppb.New(v.Made),
		SizeBytes: v.Size, ReadyToUse: v.Ready}
}

// DeleteSnapshot implements csi.ControllerServer.
func (d *Driver) DeleteSnapshot(_ context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse,
	error) {
	if err := os.RemoveAll(d.Path(req.SnapshotId)); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.DeleteSnapshotResponse{}, d.forget(req.SnapshotId)
}

// ListSnapshots implements csi.ControllerServer. A token is the place in the list, which is ordered by ID.
func (d *Driver) ListSnapshots(_ context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*csi.ListSnapshotsResponse_Entry
	for _, id := range slices.Sorted(maps.Keys(d.volumes)) {
		if v := d.volumes[id]; v.Snapshot && (req.SnapshotId == "" || req.SnapshotId == id) &&
			(req.SourceVolumeId == "" || req.SourceVolumeId == v.Source) {
			all = append(all, &csi.ListSnapshotsResponse_Entry{Snapshot: v.snapshot(id)})
		}
	}
	from := 0
	if req.StartingToken != "" {
		var err error
		if from, err = strconv.Atoi(req.StartingToken); err != nil || from < 0 || from > len(all) {
			return nil, status.Errorf(codes.Aborted, "%q is no token", req.StartingToken)
		}
	}
	resp := &csi.ListSnapshotsResponse{Entries: all[from:]}
	if n := int(req.MaxEntries); n > 0 && n < len(resp.Entries) {
		resp.Entries, resp.NextToken = resp.Entries[:n], strconv.Itoa(from+n)
	}
	return resp, nil
}
