package sim

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageSize is the size of every image, in bytes.
const imageSize = 1 << 20

// imageName returns the name for an ID from PullImage or ImageStatus.
func imageName(ref string) string { return strings.TrimPrefix(ref, "sha256:") }

func image(name string) *cri.Image {
	return &cri.Image{Id: "sha256:" + name, RepoTags: []string{name}, Size: imageSize,
		Spec: &cri.ImageSpec{Image: name}}
}

// ListImages implements runtime.Runtime.
func (r *Runtime) ListImages(context.Context, *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &cri.ListImagesResponse{}
	for _, i := range r.images {
		resp.Images = append(resp.Images, image(i))
	}
	return resp, nil
}

// ImageStatus implements runtime.Runtime; an absent image has no Image.
func (r *Runtime) ImageStatus(_ context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := imageName(req.GetImage().GetImage())
	if !slices.Contains(r.images, name) {
		return &cri.ImageStatusResponse{}, nil
	}
	return &cri.ImageStatusResponse{Image: image(name)}, nil
}

// PullImage implements runtime.Runtime.
func (r *Runtime) PullImage(ctx context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	name := req.GetImage().GetImage()
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "the image has no name")
	}
	if f := r.cfg.PullError; f != nil {
		if err := f(name); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.images, name) {
		r.changes++
		r.images = append(r.images, name)
	}
	return &cri.PullImageResponse{ImageRef: "sha256:" + name}, nil
}

// RemoveImage implements runtime.Runtime.
func (r *Runtime) RemoveImage(_ context.Context, req *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes++
	r.images = slices.DeleteFunc(r.images, func(i string) bool { return i == imageName(req.GetImage().GetImage()) })
	return &cri.RemoveImageResponse{}, nil
}

// ImageFsInfo implements runtime.Runtime.
func (r *Runtime) ImageFsInfo(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := &cri.UInt64Value{Value: uint64(len(r.images)) * imageSize}
	return &cri.ImageFsInfoResponse{ImageFilesystems: []*cri.FilesystemUsage{{
		Timestamp: r.cfg.Clock.Now().UnixNano(), FsId: &cri.FilesystemIdentifier{Mountpoint: "/sim"},
		UsedBytes: used}}}, nil
}
