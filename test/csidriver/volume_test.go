package csidriver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// serve serves a driver, with a connection to it.
func serve(t *testing.T, cfg Config) (*Driver, *grpc.ClientConn) {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(cfg.Data), "") // the driver before this one still removes its socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "d.sock")
	d, err := Serve(cfg, socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return d, conn
}

// config is that of a driver that remembers and checks, in a directory with a short path: sockets are in it.
func config(t *testing.T) Config {
	t.Helper()
	root, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	return Config{Name: "d.example.com", Node: "n1", Data: filepath.Join(root, "data"), Lifecycle: true,
		State: filepath.Join(root, "state.json"), Mutable: []string{"speed"}}
}

var directory = &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{}}

func create(t *testing.T, ctx context.Context, c csi.ControllerClient, req *csi.CreateVolumeRequest) string {
	t.Helper()
	req.VolumeCapabilities = []*csi.VolumeCapability{directory}
	v, err := c.CreateVolume(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return v.Volume.VolumeId
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// A snapshot has the data and the size of its time, also after a restart of the driver; volumes of it are no smaller.
func TestSnapshots(t *testing.T) {
	ctx, cfg := t.Context(), config(t)
	d, conn := serve(t, cfg)
	c := csi.NewControllerClient(conn)
	id := create(t, ctx, c, &csi.CreateVolumeRequest{Name: "a", CapacityRange: &csi.CapacityRange{RequiredBytes: 100}})
	file := filepath.Join(d.Path(id), "f")
	if err := os.WriteFile(file, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	var snap string
	for _, name := range []string{"snapshot-1", "snapshot-1", "snapshot-2"} { // the first one again
		s, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: id})
		if err != nil {
			t.Fatal(err)
		}
		snap = s.Snapshot.SnapshotId
		if s.Snapshot.SizeBytes != 100 {
			t.Errorf("%s has %d bytes", snap, s.Snapshot.SizeBytes)
		}
		if err := os.WriteFile(file, []byte("new"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	snap = strings.TrimSuffix(snap, "2") + "1"
	d.Stop()
	d, conn = serve(t, cfg)
	c = csi.NewControllerClient(conn)
	first, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{MaxEntries: 1})
	if err != nil || len(first.Entries) != 1 || first.Entries[0].Snapshot.SnapshotId != snap {
		t.Fatal(first, err)
	}
	rest, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{StartingToken: first.NextToken})
	if err != nil || len(rest.Entries) != 1 || rest.NextToken != "" || rest.Entries[0].Snapshot.SnapshotId == snap {
		t.Error(rest, err)
	}
	none, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SourceVolumeId: "other"})
	if err != nil || len(none.Entries) != 0 {
		t.Error(none, err)
	}
	_, err = c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{StartingToken: "3"})
	wantCode(t, "a token behind the end", err, codes.Aborted)
	source := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap}}}
	restored := create(t, ctx, c, &csi.CreateVolumeRequest{Name: "b", VolumeContentSource: source,
		CapacityRange: &csi.CapacityRange{RequiredBytes: 100}})
	if text, err := os.ReadFile(filepath.Join(d.Path(restored), "f")); err != nil || string(text) != "old" {
		t.Errorf("restored: %q, %v", text, err)
	}
	_, err = c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "c", VolumeContentSource: source,
		VolumeCapabilities: []*csi.VolumeCapability{directory}, CapacityRange: &csi.CapacityRange{RequiredBytes: 99}})
	wantCode(t, "a volume smaller than its snapshot", err, codes.OutOfRange)
	_, err = c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "d", VolumeContentSource: source,
		VolumeCapabilities: []*csi.VolumeCapability{{AccessType: &csi.VolumeCapability_Block{}}},
		CapacityRange:      &csi.CapacityRange{RequiredBytes: 100}})
	wantCode(t, "a block device of a directory", err, codes.InvalidArgument)
	if _, err := c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snap}); err != nil {
		t.Error(err)
	}
	if left, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{}); err != nil || len(left.Entries) != 1 {
		t.Error(left, err)
	}
}

// A driver that checks the order of calls refuses what comes too early or too late, also after a restart.
func TestLifecycle(t *testing.T) {
	ctx, cfg := t.Context(), config(t)
	d, conn := serve(t, cfg)
	c, n := csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	id := create(t, ctx, c, &csi.CreateVolumeRequest{Name: "a"})
	staging := filepath.Join(filepath.Dir(cfg.Data), "staging")
	if err := os.Mkdir(staging, 0o700); err != nil {
		t.Fatal(err)
	}
	stage := &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: directory}
	_, err := n.NodeStageVolume(ctx, stage)
	wantCode(t, "stage before attach", err, codes.FailedPrecondition)
	_, err = n.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging,
		TargetPath: filepath.Join(staging, "pod"), VolumeCapability: directory})
	wantCode(t, "publish before stage", err, codes.FailedPrecondition)
	if _, err := c.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: "n1",
		VolumeCapability: directory}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.NodeStageVolume(ctx, stage); err != nil {
		t.Fatal(err)
	}
	if err := d.change(id, func(v *volume) { v.Published = []string{"/elsewhere"} }); err != nil {
		t.Fatal(err)
	}
	_, err = n.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging,
		TargetPath: filepath.Join(staging, "pod"), VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{}, AccessMode: &csi.VolumeCapability_AccessMode{
				Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER}}})
	wantCode(t, "a second writer", err, codes.FailedPrecondition)
	if err := d.change(id, func(v *volume) { v.Published = nil }); err != nil {
		t.Fatal(err)
	}
	d.Stop()
	_, conn = serve(t, cfg)
	c, n = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	_, err = c.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id})
	wantCode(t, "detach before unstage", err, codes.FailedPrecondition)
	_, err = c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	wantCode(t, "delete before unstage", err, codes.FailedPrecondition)
	if _, err := n.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id,
		StagingTargetPath: staging}); err != nil {
		t.Error(err)
	}
	_, err = c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	wantCode(t, "delete before detach", err, codes.FailedPrecondition)
	for range 2 { // the second one finds nothing
		if _, err := c.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id}); err != nil {
			t.Error(err)
		}
		if _, err := c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Error(err)
		}
	}
	_, err = c.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
		MutableParameters: map[string]string{"speed": "high"}})
	wantCode(t, "a change of no volume", err, codes.InvalidArgument)
	_, err = c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "b",
		MutableParameters: map[string]string{"colour": "red"}, VolumeCapabilities: []*csi.VolumeCapability{directory}})
	wantCode(t, "a parameter that the driver does not know", err, codes.InvalidArgument)
}
