package storage

import (
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// asyncStream is the client's end of a stream on which Send does not block. The client receives
// nothing while it sends, the server reads nothing while its answers are not received, and between
// two ends in one process there is no buffer: when twenty watches ended at the same time, all
// others of the stream blocked forever.
type asyncStream struct {
	pb.Watch_WatchClient
	mu      sync.Mutex
	waiting []*pb.WatchRequest // nil is the end
	err     error              // of an earlier one
	news    chan struct{}
}

func newAsyncStream(s pb.Watch_WatchClient) *asyncStream {
	u := &asyncStream{Watch_WatchClient: s, news: make(chan struct{}, 1)}
	go u.run()
	return u
}

// Send implements pb.Watch_WatchClient. Its error is that of an earlier request.
func (u *asyncStream) Send(r *pb.WatchRequest) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting = append(u.waiting, r)
	select {
	case u.news <- struct{}{}:
	default:
	}
	return u.err
}

// CloseSend implements grpc.ClientStream.
func (u *asyncStream) CloseSend() error { return u.Send(nil) }

// run sends until the stream ends.
func (u *asyncStream) run() {
	for {
		select {
		case <-u.news:
		case <-u.Context().Done():
			return
		}
		u.mu.Lock()
		next := u.waiting
		u.waiting = nil
		u.mu.Unlock()
		for _, r := range next {
			if r == nil {
				_ = u.Watch_WatchClient.CloseSend() // the end either way
				return
			}
			if err := u.Watch_WatchClient.Send(r); err != nil {
				u.mu.Lock()
				u.err = err
				u.mu.Unlock()
				return
			}
		}
	}
}
