package storage

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"carob/internal/base/errkind"
)

// cluster answers reads like an empty etcd.
type cluster struct{ pb.UnimplementedKVServer }

func (cluster) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: 1}}, nil
}

func serveCluster(t *testing.T, addr string) (string, *grpc.Server) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pb.RegisterKVServer(s, cluster{})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String(), s
}

// An unavailable external cluster is reported with its address, and so is its return.
func TestCheck(t *testing.T) {
	addr, server := serveCluster(t, "127.0.0.1:0")
	e, err := Open(t.Context(), Config{Servers: []string{"http://" + addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	check := func() error {
		e.health.checked = e.health.checked.Add(-healthLife) // as if the request came a second later
		return e.Check(t.Context())
	}
	if err := check(); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	if err := e.Check(t.Context()); err != nil {
		t.Errorf("asked again within a second: %v", err)
	}
	if err := check(); !errkind.Is(err, errkind.Unavailable) || !strings.Contains(err.Error(), addr) {
		t.Errorf("away: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	before := e.health.err
	e.health.checked = e.health.checked.Add(-healthLife)
	if err := e.Check(gone); err == nil || !errors.Is(e.health.err, before) {
		t.Errorf("a caller that went away: %v, remembered %v", err, e.health.err)
	}
	serveCluster(t, addr)
	for i := 0; ; i++ {
		if err = check(); err == nil {
			break
		}
		if i == 10 {
			t.Fatalf("back: %v", err)
		}
	}
}
