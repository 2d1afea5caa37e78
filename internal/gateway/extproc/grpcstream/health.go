package grpcstream

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// requestTime is how long a client may take for the one message of its request.
const requestTime = 10 * time.Second

// AddHealth adds the health service: services, and the server as a whole, serve as long as it answers.
func (s *Server) AddHealth(services ...string) {
	of := func(stream *Stream) (healthv1.HealthCheckResponse_ServingStatus, error) {
		in := &healthv1.HealthCheckRequest{}
		if err := stream.Recv(in, requestTime); err != nil {
			return 0, err
		}
		stream.Free()
		if name := in.GetService(); name != "" && !slices.Contains(services, name) {
			return healthv1.HealthCheckResponse_SERVICE_UNKNOWN, nil
		}
		return healthv1.HealthCheckResponse_SERVING, nil
	}
	s.Methods[healthv1.Health_Check_FullMethodName] = func(stream *Stream) error {
		state, err := of(stream)
		if err != nil {
			return err
		}
		if state == healthv1.HealthCheckResponse_SERVICE_UNKNOWN {
			return status.Error(codes.NotFound, "unknown service")
		}
		return stream.Send(&healthv1.HealthCheckResponse{Status: state})
	}
	s.Methods[healthv1.Health_Watch_FullMethodName] = func(stream *Stream) error {
		state, err := of(stream)
		if err != nil {
			return err
		}
		if err := stream.Send(&healthv1.HealthCheckResponse{Status: state}); err != nil {
			return err
		}
		<-stream.Context().Done() // nothing changes until the server ends
		return status.FromContextError(stream.Context().Err()).Err()
	}
}
