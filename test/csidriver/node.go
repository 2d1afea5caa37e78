package csidriver

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.cfg.Node, MaxVolumesPerNode: d.cfg.Limit,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{d.cfg.Topology: d.cfg.Node}}}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (
	*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range append([]csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, csi.NodeServiceCapability_RPC_EXPAND_VOLUME}, d.cfg.With...) {
		if !slices.Contains(d.cfg.Without, t) {
			resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
				Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
		}
	}
	return resp, nil
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
	return &csi.NodeStageVolumeResponse{}, d.change(req.VolumeId, func(v *volume) {
		v.Staged = add(v.Staged, req.StagingTargetPath)
	})
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *Driver) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (
	*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, d.change(req.VolumeId, func(v *volume) {
		v.Staged = remove(v.Staged, req.StagingTargetPath)
	})
}

// Staged is how many volumes are staged.
func (d *Driver) Staged() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, v := range d.volumes {
		n += len(v.Staged)
	}
	return n
}

// NodePublishVolume implements csi.NodeServer: a bind mount of the directory, or of a loop device.
func (d *Driver) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (
	*csi.NodePublishVolumeResponse, error) {
	source := d.Path(req.VolumeId)
	if inline(req) {
		if err := os.MkdirAll(source, 0o755); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	info, err := os.Stat(source)
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "volume %s is not there", req.VolumeId)
	}
	if block := req.VolumeCapability.GetBlock() != nil; block == info.IsDir() {
		return nil, status.Errorf(codes.InvalidArgument, "volume %s: block %v, asked for %v", req.VolumeId,
			!info.IsDir(), block)
	}
	d.disks.Lock()
	defer d.disks.Unlock()
	if others := remove(d.get(req.VolumeId).Published, req.TargetPath); len(others) > 0 &&
		req.VolumeCapability.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s has one writer, at %v", req.VolumeId, others)
	}
	if !mounted(req.TargetPath) {
		if err := publish(source, req); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &csi.NodePublishVolumeResponse{}, d.change(req.VolumeId, func(v *volume) {
		v.Ephemeral = inline(req)
		v.Published = add(v.Published, req.TargetPath)
	})
}

// publish mounts a directory, or the loop device of a file, which all pods share.
func publish(source string, req *csi.NodePublishVolumeRequest) error {
	var err error
	if req.VolumeCapability.GetBlock() != nil {
		if source, err = loopOf(source); err == nil {
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
	return err
}

// NodeUnpublishVolume implements csi.NodeServer. The last one of a volume takes its loop device away, and deletes a
// volume that a pod has in its own specification.
func (d *Driver) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (
	*csi.NodeUnpublishVolumeResponse, error) {
	d.disks.Lock()
	defer d.disks.Unlock()
	if mounted(req.TargetPath) {
		if err := unix.Unmount(req.TargetPath, unix.UMOUNT_NOFOLLOW); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	if err := os.Remove(req.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	had := d.get(req.VolumeId)
	if len(remove(had.Published, req.TargetPath)) == 0 {
		source := d.Path(req.VolumeId)
		if info, err := os.Stat(source); err == nil && info.Mode().IsRegular() {
			if err := eachLoop(source, unix.LOOP_CLR_FD); err != nil {
				return nil, status.Error(codes.Internal, err.Error())
			}
		}
		if had.Ephemeral || strings.HasPrefix(req.VolumeId, "csi-") && strings.Contains(req.TargetPath, "/pods/") &&
			len(had.Staged) == 0 {
			if err := os.RemoveAll(source); err != nil {
				return nil, status.Error(codes.Internal, err.Error())
			}
			return &csi.NodeUnpublishVolumeResponse{}, d.forget(req.VolumeId)
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, d.change(req.VolumeId, func(v *volume) {
		v.Published = remove(v.Published, req.TargetPath)
	})
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
	if size, ok := deviceSize(req.VolumePath); ok {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: size}}}, nil
	}
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

// deviceSize is the size of a block device.
func deviceSize(path string) (int64, bool) {
	if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeDevice == 0 {
		return 0, false
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer func() { _ = f.Close() }()
	size, err := f.Seek(0, io.SeekEnd)
	return size, err == nil
}

func mounted(path string) bool {
	var own, above unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &own) != nil ||
		unix.Statx(unix.AT_FDCWD, filepath.Dir(path), 0, unix.STATX_MNT_ID, &above) != nil {
		return false
	}
	return own.Mnt_id != above.Mnt_id
}
