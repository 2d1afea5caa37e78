package gateway

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"carob/internal/base/testwait"
)

// raw serves every method of gRPC with one handler.
func raw(t *testing.T, handle func(method string, s grpc.ServerStream) error) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(s)
		return handle(method, s)
	}))
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	return ln.Addr().String()
}

// Calls that the gateway refuses get statuses of gRPC. Deadlines and cancellations of gRPC reach the server, and its
// statuses, also those of calls that it ends early, reach the client; a stream whose client is silent goes on.
func TestGRPC(t *testing.T) {
	cancelled, deadlines := make(chan error, 10), make(chan bool, 10)
	release := make(chan struct{})
	addr := raw(t, func(method string, s grpc.ServerStream) error {
		switch method {
		case "/s/Wait":
			_, has := s.Context().Deadline()
			deadlines <- has
			<-s.Context().Done()
			cancelled <- s.Context().Err()
			return status.FromContextError(s.Context().Err()).Err()
		case "/s/Refuse":
			s.SetTrailer(metadata.Pairs("reason", "none"))
			return status.Error(grpccodes.FailedPrecondition, "no: 100%")
		case "/s/Half":
			if err := s.SendMsg(&emptypb.Empty{}); err != nil {
				return err
			}
			return status.Error(grpccodes.DataLoss, "half")
		case "/s/Silent": // the server speaks, then waits for the client
			if err := s.SendMsg(&emptypb.Empty{}); err != nil {
				return err
			}
			<-release
			for {
				if err := s.RecvMsg(&emptypb.Empty{}); err != nil {
					return s.SendMsg(&emptypb.Empty{})
				}
			}
		}
		return s.SendMsg(&emptypb.Empty{})
	})
	l := newLab(t)
	l.service("a", "kubernetes.io/h2c", at(addr, "pa"))
	l.service("empty", "kubernetes.io/h2c")
	l.service("gone", "kubernetes.io/h2c", at(freePort(t).String(), "pg"))
	l.ingress("", nil, "/s=a", "/none=missing", "/empty=empty", "/gone=gone")
	l.update()
	conn, err := grpc.NewClient(netip.MustParseAddrPort(l.http).String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func(ctx context.Context, method string) error {
		return conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
	}
	code := func(what string, err error, want grpccodes.Code, text string) {
		t.Helper()
		if s := status.Convert(err); s.Code() != want || text != "" && s.Message() != text {
			t.Errorf("%s: %v", what, err)
		}
	}
	code("a backend that is not there", call(t.Context(), "/none/Call"), grpccodes.Unavailable, "")
	code("no endpoint", call(t.Context(), "/empty/Call"), grpccodes.Unavailable, "Service Unavailable")
	code("an endpoint that does not listen", call(t.Context(), "/gone/Call"), grpccodes.Unavailable, "")
	code("no route", call(t.Context(), "/other/Call"), grpccodes.Unimplemented, "Not Found")
	code("a call", call(t.Context(), "/s/Call"), grpccodes.OK, "")
	code("a refusal", call(t.Context(), "/s/Refuse"), grpccodes.FailedPrecondition, "no: 100%")
	code("an error after a message", call(t.Context(), "/s/Half"), grpccodes.DataLoss, "half")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	code("a deadline", call(ctx, "/s/Wait"), grpccodes.DeadlineExceeded, "")
	cancel()
	if !<-deadlines {
		t.Error("the server did not get the deadline")
	}
	<-cancelled
	ctx, cancel = context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- call(ctx, "/s/Wait") }()
	if <-deadlines {
		t.Error("the server got a deadline")
	}
	cancel()
	code("a call that is cancelled", <-ended, grpccodes.Canceled, "")
	if err := <-cancelled; err == nil {
		t.Error("the call at the server goes on")
	}
	silent, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/s/Silent")
	if err != nil {
		t.Fatal(err)
	}
	if err := silent.RecvMsg(&emptypb.Empty{}); err != nil {
		t.Fatal(err)
	}
	close(release)
	if err := silent.SendMsg(&emptypb.Empty{}); err != nil {
		t.Error(err)
	}
	if err := silent.CloseSend(); err != nil {
		t.Error(err)
	}
	if err := silent.RecvMsg(&emptypb.Empty{}); err != nil {
		t.Error(err)
	}
	if err := silent.RecvMsg(&emptypb.Empty{}); err != io.EOF { //nolint:errorlint // what gRPC returns
		t.Errorf("the end of the stream: %v", err)
	}
	testwait.For(t, "the end of all requests", func() bool { return l.seen.figures.inFlight.Load() == 0 })
}
