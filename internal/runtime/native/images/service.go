package images

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native"
)

// Resolve implements native.Images.
func (s *Store) Resolve(_ context.Context, ref string) (native.Image, error) {
	r := s.lookup(ref)
	if r == nil {
		return native.Image{}, status.Errorf(codes.NotFound, "image %q not found", ref)
	}
	im := native.Image{ID: r.id, Ref: r.id, Config: r.config}
	if _, digests := r.split(); len(digests) > 0 {
		im.Ref = digests[0]
	}
	return im, nil
}

// ListImages implements the CRI call; a filter names one image.
func (s *Store) ListImages(_ context.Context, req *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	resp := &cri.ListImagesResponse{}
	if want := req.GetFilter().GetImage().GetImage(); want != "" {
		if r := s.lookup(want); r != nil {
			resp.Images = append(resp.Images, s.describe(r))
		}
		return resp, nil
	}
	for _, r := range s.all() {
		resp.Images = append(resp.Images, s.describe(r))
	}
	return resp, nil
}

// ImageStatus implements the CRI call; an unknown image has an empty answer.
func (s *Store) ImageStatus(_ context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	r := s.lookup(req.GetImage().GetImage())
	if r == nil {
		return &cri.ImageStatusResponse{}, nil
	}
	resp := &cri.ImageStatusResponse{Image: s.describe(r)}
	if req.GetVerbose() {
		info, err := json.Marshal(map[string]any{"chainID": r.chain, "imageSpec": r.config})
		if err != nil {
			return nil, status.Errorf(codes.Internal, "describe image %s: %v", r.id, err)
		}
		resp.Info = map[string]string{"info": string(info)}
	}
	return resp, nil
}

// Tag gives a present image another name, and takes it from the image that has it. It returns the
// full name. An imported image stays imported.
func (s *Store) Tag(ctx context.Context, ref, name string) (string, error) {
	full, err := normalize(name)
	if err != nil || strings.Contains(full, "@") {
		return "", status.Errorf(codes.InvalidArgument, "%q is not a name of an image, such as localhost/app:1", name)
	}
	r := s.lookup(ref)
	if r == nil || len(r.names) == 0 {
		return "", status.Errorf(codes.NotFound, "there is no image %s", ref)
	}
	ctx = inNamespace(ctx)
	im, err := s.images.Get(ctx, r.names[0])
	if err != nil {
		return "", status.Errorf(codes.Internal, "failed to name image %q: %v", ref, err)
	}
	if _, err := s.publish(ctx, im.Target, s.pinned(r), full); err != nil {
		return "", status.Errorf(codes.Internal, "failed to name image %q: %v", ref, err)
	}
	return full, nil
}

// Untag takes a name from an image that has another one; with the last name of a repository go its digests. It reports
// false, and changes nothing, if the image has no other name.
func (s *Store) Untag(ctx context.Context, ref string) (bool, error) {
	name, err := normalize(ref)
	if err != nil || strings.Contains(name, "@") {
		return false, nil //nolint:nilerr // an ID or a digest is no name: RemoveImage finds the image that is meant
	}
	ctx = inNamespace(ctx)
	if done, err := s.untag(ctx, name); err != nil || !done {
		return false, err
	}
	return true, rpcError(s.collect(ctx))
}

func (s *Store) untag(ctx context.Context, name string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.byID[s.byName[name]]
	if r == nil {
		return false, nil
	}
	repository := name[:strings.LastIndex(name, ":")]
	others, sameRepository := false, false
	for _, n := range r.names {
		if n != name && !strings.Contains(n, "@") {
			others = true
			sameRepository = sameRepository || strings.HasPrefix(n, repository+":")
		}
	}
	if !others {
		return false, nil
	}
	for _, n := range r.names {
		if n != name && (sameRepository || !strings.HasPrefix(n, repository+"@")) {
			continue
		}
		if err := s.images.Delete(ctx, n); err != nil && !errdefs.IsNotFound(err) {
			return false, status.Errorf(codes.Internal, "failed to remove the name %q: %v", n, err)
		}
		s.unindex(n)
	}
	return true, nil
}

// RemoveImage implements the CRI call: the image is removed with all its names. Its layers stay as
// long as a container uses them. An unknown image is not an error.
func (s *Store) RemoveImage(ctx context.Context, req *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	r := s.lookup(req.GetImage().GetImage())
	if r == nil {
		return &cri.RemoveImageResponse{}, nil
	}
	ctx = inNamespace(ctx)
	if err := s.remove(ctx, r.id); err != nil {
		return nil, status.Errorf(codes.Internal, "failed to remove image %q: %v", r.id, err)
	}
	return &cri.RemoveImageResponse{}, rpcError(s.collect(ctx))
}

func (s *Store) remove(ctx context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.byID[id]
	if r == nil {
		return nil
	}
	for _, name := range r.names {
		if err := s.images.Delete(ctx, name); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		s.unindex(name)
	}
	return s.unhold(ctx, r.chain, "image/"+r.id)
}

// ImageFsInfo implements the CRI call: images and containers share one file system; the usage is
// the sum of all unpacked layers.
func (s *Store) ImageFsInfo(ctx context.Context, _ *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	ctx = inNamespace(ctx)
	var names []string
	err := s.snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind == snapshots.KindCommitted {
			names = append(names, info.Name)
		}
		return nil
	})
	if err != nil {
		return nil, rpcError(err)
	}
	var bytes, inodes int64
	for _, n := range names {
		u, err := s.snapshots.Usage(ctx, n)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, rpcError(err)
		}
		bytes, inodes = bytes+u.Size, inodes+u.Inodes
	}
	fs := []*cri.FilesystemUsage{{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &cri.FilesystemIdentifier{Mountpoint: filepath.Join(s.cfg.Root, "overlay")},
		UsedBytes:  &cri.UInt64Value{Value: uint64(bytes)},
		InodesUsed: &cri.UInt64Value{Value: uint64(inodes)},
	}}
	return &cri.ImageFsInfoResponse{ImageFilesystems: fs, ContainerFilesystems: fs}, nil
}

// split separates tags from digests; an image's own ID is neither.
func (r *record) split() (tags, digests []string) {
	for _, n := range r.names {
		switch {
		case strings.HasPrefix(n, "sha256:"):
		case strings.Contains(n, "@"):
			digests = append(digests, n)
		default:
			tags = append(tags, n)
		}
	}
	return tags, digests
}

// pinned reports whether an image is never removed to free disk space: imported ones are not, because they cannot be
// pulled again.
func (s *Store) pinned(r *record) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.ContainsFunc(r.names, func(n string) bool { return s.kept[n] })
}

func (s *Store) describe(r *record) *cri.Image {
	im := &cri.Image{Id: r.id, Size: r.size, Pinned: s.pinned(r)}
	im.RepoTags, im.RepoDigests = r.split()
	im.Spec = &cri.ImageSpec{Image: r.id}
	// A number that is not a valid ID (4294967296, -1, +5) is reported as a name: a pod that must
	// not run as root is not allowed to run as a name.
	user, _, _ := strings.Cut(r.config.Config.User, ":")
	if uid, err := strconv.ParseUint(user, 10, 31); err == nil {
		im.Uid = &cri.Int64Value{Value: int64(uid)}
	} else {
		im.Username = user
	}
	return im
}
