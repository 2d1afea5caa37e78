package storage

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
)

// localRequests are the requests in progress of clients in this process. They run on the clients'
// own goroutines, for which etcd does not wait when it stops: one that still reads when the
// database is closed crashes the process.
type localRequests struct {
	mu      sync.RWMutex // held by readers while they read
	closed  bool
	streams sync.WaitGroup // watch streams
}

// client returns the client of s whose requests are counted. up is called for writes and watches.
func (in *localRequests) client(s *etcdserver.EtcdServer, up *housekeeping) *clientv3.Client {
	c := v3client.New(s)
	c.KV = clientv3.NewKVFromKVClient(reads{adapter.KvServerToKvClient(v3rpc.NewQuotaKVServer(s)), in, up}, c)
	c.Watcher = clientv3.NewWatchFromWatchClient(
		watchClient{adapter.WatchServerToWatchClient(watchServer{v3rpc.NewWatchServer(s), in, up}), in}, c)
	return c
}

// close rejects further reads and returns when none is in progress. The client is closed already,
// which ends its watch streams.
func (in *localRequests) close() {
	in.mu.Lock()
	in.closed = true
	in.mu.Unlock()
	in.streams.Wait()
}

// reads counts the requests that read the database; all others go through raft, for which etcd
// waits.
type reads struct {
	pb.KVClient
	in *localRequests
	up *housekeeping
}

// Range implements pb.KVClient.
func (r reads) Range(ctx context.Context, req *pb.RangeRequest, opts ...grpc.CallOption) (*pb.RangeResponse, error) {
	r.in.mu.RLock()
	defer r.in.mu.RUnlock()
	if r.in.closed {
		return nil, rpctypes.ErrGRPCStopped
	}
	return r.KVClient.Range(ctx, req, opts...)
}

// Txn implements pb.KVClient.
func (r reads) Txn(ctx context.Context, req *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	r.in.mu.RLock()
	defer r.in.mu.RUnlock()
	if r.in.closed {
		return nil, rpctypes.ErrGRPCStopped
	}
	defer r.up.wrote(putSize(req))
	resp, err := r.KVClient.Txn(ctx, req, opts...)
	if noRoom(err) {
		r.up.refused()
	}
	return resp, err
}

// putSize returns how many bytes a transaction writes, at most.
func putSize(req *pb.TxnRequest) int {
	n := 0
	for _, ops := range [...][]*pb.RequestOp{req.Success, req.Failure} {
		for _, op := range ops {
			n += len(op.GetRequestPut().GetValue())
		}
	}
	return n
}

// watchClient and watchServer are the two ends of a stream: the first counts it before the
// goroutine of the second starts.
type watchClient struct {
	pb.WatchClient
	in *localRequests
}

// Watch implements pb.WatchClient.
func (w watchClient) Watch(ctx context.Context, opts ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	w.in.streams.Add(1)
	s, err := w.WatchClient.Watch(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return newAsyncStream(s), nil
}

type watchServer struct {
	pb.WatchServer
	in *localRequests
	up *housekeeping
}

// Watch implements pb.WatchServer.
func (w watchServer) Watch(stream pb.Watch_WatchServer) error {
	defer w.in.streams.Done()
	return w.WatchServer.Watch(announced{stream, w.up})
}

// announced is the server's end of a stream that reports each started watch.
type announced struct {
	pb.Watch_WatchServer
	up *housekeeping
}

// Send implements pb.Watch_WatchServer.
func (a announced) Send(r *pb.WatchResponse) error {
	if r.GetCreated() {
		defer a.up.watched()
	}
	return a.Watch_WatchServer.Send(r)
}
