package criserver

import (
	"context"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// GetContainerEvents sends each event as it happens.
func (s *runtimeService) GetContainerEvents(_ *cri.GetEventsRequest,
	stream grpc.ServerStreamingServer[cri.ContainerEventResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	err := s.ContainerEvents(ctx, func(e *cri.ContainerEventResponse) {
		if err := stream.Send(e); err != nil {
			cancel(err)
		}
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// StreamPodSandboxes is ListPodSandbox in several messages.
func (s *runtimeService) StreamPodSandboxes(r *cri.StreamPodSandboxesRequest,
	stream grpc.ServerStreamingServer[cri.StreamPodSandboxesResponse]) error {
	all, err := s.ListPodSandbox(stream.Context(), &cri.ListPodSandboxRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return inParts(all.GetItems(), func(part []*cri.PodSandbox) error {
		return stream.Send(&cri.StreamPodSandboxesResponse{PodSandboxes: part})
	})
}

// StreamContainers is ListContainers in several messages.
func (s *runtimeService) StreamContainers(r *cri.StreamContainersRequest,
	stream grpc.ServerStreamingServer[cri.StreamContainersResponse]) error {
	all, err := s.ListContainers(stream.Context(), &cri.ListContainersRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return inParts(all.GetContainers(), func(part []*cri.Container) error {
		return stream.Send(&cri.StreamContainersResponse{Containers: part})
	})
}

// StreamContainerStats is ListContainerStats in several messages.
func (s *runtimeService) StreamContainerStats(r *cri.StreamContainerStatsRequest,
	stream grpc.ServerStreamingServer[cri.StreamContainerStatsResponse]) error {
	all, err := s.ListContainerStats(stream.Context(), &cri.ListContainerStatsRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return inParts(all.GetStats(), func(part []*cri.ContainerStats) error {
		return stream.Send(&cri.StreamContainerStatsResponse{ContainerStats: part})
	})
}

// StreamPodSandboxStats is ListPodSandboxStats in several messages.
func (s *runtimeService) StreamPodSandboxStats(r *cri.StreamPodSandboxStatsRequest,
	stream grpc.ServerStreamingServer[cri.StreamPodSandboxStatsResponse]) error {
	all, err := s.ListPodSandboxStats(stream.Context(), &cri.ListPodSandboxStatsRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return inParts(all.GetStats(), func(part []*cri.PodSandboxStats) error {
		return stream.Send(&cri.StreamPodSandboxStatsResponse{PodSandboxStats: part})
	})
}

// StreamImages is ListImages in several messages.
func (s *imageService) StreamImages(r *cri.StreamImagesRequest,
	stream grpc.ServerStreamingServer[cri.StreamImagesResponse]) error {
	all, err := s.ListImages(stream.Context(), &cri.ListImagesRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return inParts(all.GetImages(), func(part []*cri.Image) error {
		return stream.Send(&cri.StreamImagesResponse{Images: part})
	})
}

// measured is a runtime with metrics besides statistics.
type measured interface {
	ListMetricDescriptors(context.Context, *cri.ListMetricDescriptorsRequest) (*cri.ListMetricDescriptorsResponse,
		error)
	ListPodSandboxMetrics(context.Context, *cri.ListPodSandboxMetricsRequest) (*cri.ListPodSandboxMetricsResponse,
		error)
}

// ListMetricDescriptors returns Unimplemented for a runtime without metrics.
func (s *runtimeService) ListMetricDescriptors(ctx context.Context,
	r *cri.ListMetricDescriptorsRequest) (*cri.ListMetricDescriptorsResponse, error) {
	if m, ok := s.Runtime.(measured); ok {
		return m.ListMetricDescriptors(ctx, r)
	}
	return s.otherRuntimeCalls.ListMetricDescriptors(ctx, r)
}

// ListPodSandboxMetrics returns Unimplemented for a runtime without metrics.
func (s *runtimeService) ListPodSandboxMetrics(ctx context.Context,
	r *cri.ListPodSandboxMetricsRequest) (*cri.ListPodSandboxMetricsResponse, error) {
	if m, ok := s.Runtime.(measured); ok {
		return m.ListPodSandboxMetrics(ctx, r)
	}
	return s.otherRuntimeCalls.ListPodSandboxMetrics(ctx, r)
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics in several messages.
func (s *runtimeService) StreamPodSandboxMetrics(_ *cri.StreamPodSandboxMetricsRequest,
	stream grpc.ServerStreamingServer[cri.StreamPodSandboxMetricsResponse]) error {
	all, err := s.ListPodSandboxMetrics(stream.Context(), &cri.ListPodSandboxMetricsRequest{})
	if err != nil {
		return err
	}
	return inParts(all.GetPodMetrics(), func(part []*cri.PodSandboxMetrics) error {
		return stream.Send(&cri.StreamPodSandboxMetricsResponse{PodSandboxMetrics: part})
	})
}
