// echo is the program in the image localhost/echo:1: it answers HTTP/1.1 and HTTP/2 without TLS on port 8080, and
// gRPC on port 9090, with what it is sent. When it gets SIGTERM, it accepts no more connections at once, answers what
// has been asked, and ends: a well-behaved server that knows nothing of Kubernetes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	name, _ := os.Hostname()
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "Hello from %s\n", name) })
	web := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 10 * time.Second, Protocols: &http.Protocols{}}
	web.Protocols.SetHTTP1(true)
	web.Protocols.SetUnencryptedHTTP2(true)

	calls := grpc.NewServer()
	calls.RegisterService(&grpc.ServiceDesc{ServiceName: "carob.Echo", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Stream", Handler: echo, ServerStreams: true,
			ClientStreams: true}}}, nil)
	l, err := net.Listen("tcp", ":9090")
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- web.ListenAndServe() }()
	go func() { failed <- calls.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	finish, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		calls.GracefulStop()
	}()
	err = web.Shutdown(finish)
	select {
	case <-done:
	case <-finish.Done():
	}
	return err
}

// echo sends each message of a stream back, until the client ends it.
func echo(_ any, s grpc.ServerStream) error {
	for {
		var m wrapperspb.StringValue
		if err := s.RecvMsg(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := s.SendMsg(&m); err != nil {
			return err
		}
	}
}
