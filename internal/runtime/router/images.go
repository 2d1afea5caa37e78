package router

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
)

// ListImages returns the images of all runtimes; those of the others have the name of a handler in their
// spec, and are the last known ones while their runtime does not answer.
func (r *Router) ListImages(ctx context.Context, req *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	own, err := r.main.ListImages(ctx, req)
	if err != nil {
		return nil, err
	}
	images := slices.Clone(own.GetImages())
	for _, more := range fromAll(r, func(o *other) []*cri.Image { return o.imageList(ctx, req) }) {
		images = append(images, more...)
	}
	return &cri.ListImagesResponse{Images: images}, nil
}

func (o *other) imageList(ctx context.Context, req *cri.ListImagesRequest) []*cri.Image {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	resp, err := on(ctx, o, runtime.Runtime.ListImages, req)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		return o.images
	}
	images := make([]*cri.Image, 0, len(resp.GetImages()))
	for _, i := range resp.GetImages() {
		i = proto.CloneOf(i)
		if i.Spec == nil {
			i.Spec = &cri.ImageSpec{Image: i.GetId()}
		}
		i.Spec.RuntimeHandler = o.names[0]
		images = append(images, i)
	}
	if req.GetFilter() == nil {
		o.images = images
	}
	return images
}

// imageRequest is a request about one image.
type imageRequest interface {
	proto.Message
	GetImage() *cri.ImageSpec
}

// forImage calls the runtime of the image's handler, with the handler's name there; without a handler of another
// runtime, the node's own.
func forImage[Req imageRequest, Resp any](ctx context.Context, r *Router,
	do func(runtime.Runtime, context.Context, Req) (Resp, error), req Req) (Resp, error) {
	t := r.handlers[req.GetImage().GetRuntimeHandler()]
	if t == nil {
		return do(r.main, ctx, req)
	}
	req = proto.CloneOf(req)
	req.GetImage().RuntimeHandler = t.handler
	return on(ctx, t.other, do, req)
}

// ImageStatus returns the status of an image in the runtime of its handler.
func (r *Router) ImageStatus(ctx context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	return forImage(ctx, r, runtime.Runtime.ImageStatus, req)
}

// PullImage pulls an image into the runtime of its handler.
func (r *Router) PullImage(ctx context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	return forImage(ctx, r, runtime.Runtime.PullImage, req)
}

// RemoveImage removes an image from the runtime of its handler.
func (r *Router) RemoveImage(ctx context.Context, req *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	return forImage(ctx, r, runtime.Runtime.RemoveImage, req)
}

// ImageFsInfo is that of the node's own runtime.
func (r *Router) ImageFsInfo(ctx context.Context, req *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	return r.main.ImageFsInfo(ctx, req)
}
