package native

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// broker delivers every event to every subscriber, in order. No event is lost, and none waits for a
// slow subscriber.
type broker struct {
	mu     sync.Mutex
	subs   map[*subscriber]bool
	closed bool
}

type subscriber struct {
	wake  chan struct{} // holds one token while queue is not empty
	queue []*cri.ContainerEventResponse
}

func (b *broker) wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs) > 0
}

func (b *broker) publish(e *cri.ContainerEventResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		s.queue = append(s.queue, e)
		s.signal()
	}
}

func (s *subscriber) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (b *broker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for s := range b.subs {
		s.signal()
	}
}

func (b *broker) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

func (b *broker) subscribe() *subscriber {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &subscriber{wake: make(chan struct{}, 1)}
	if b.subs == nil {
		b.subs = map[*subscriber]bool{}
	}
	b.subs[s] = true
	return s
}

func (b *broker) unsubscribe(s *subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subs, s)
}

func (b *broker) take(s *subscriber) (list []*cri.ContainerEventResponse, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list, s.queue = s.queue, nil
	return list, b.closed
}

// ContainerEvents emits the events of sandboxes and containers from now on.
func (r *Runtime) ContainerEvents(ctx context.Context, emit func(*cri.ContainerEventResponse)) error {
	s := r.events.subscribe()
	defer r.events.unsubscribe(s)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wake:
		}
		list, closed := r.events.take(s)
		for _, e := range list {
			emit(e)
		}
		if closed {
			return status.Error(codes.Unavailable, "the runtime is closing")
		}
	}
}

// publish emits an event about a sandbox or one of its containers. The event carries the state of
// the whole sandbox, as the evented PLEG requires.
func (r *Runtime) publish(s *sandbox, id string, kind cri.ContainerEventType) {
	if !r.events.wanted() {
		return
	}
	e := &cri.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano(),
		PodSandboxStatus: s.status()}
	for _, c := range r.containersOf(s.rec.ID) {
		e.ContainersStatuses = append(e.ContainersStatuses, c.status())
	}
	r.events.publish(e)
}
