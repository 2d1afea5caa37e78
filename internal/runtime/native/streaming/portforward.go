package streaming

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"carob/internal/base/streamguard"
)

// The server of port-forward over SPDY is carob's own: that of cri-streaming never releases a connection whose client
// leaves while a stream of it waits, limits no streams, and has no context that ends with the client.

// mostStreams is how many streams may be open in one connection: two for each forwarded connection.
const mostStreams = 2048

// pairTimeout is how long a stream waits for the other one of its pair (cri-streaming's default).
const pairTimeout = portforwardCreation

// forwarding is one connection of a client:
//
//	stream ──its pair is complete──▶ forward ──the port's side, or the connection, ends──▶ both streams are reset
//	   └────no second one in time──▶ reset
type forwarding struct {
	rt   Runtime
	pod  string
	conn httpstream.Connection

	cancel context.CancelCauseFunc

	mu    sync.Mutex
	pairs map[string]*pair // incomplete ones by request
	open  int              // streams
}

// pair are the two streams of one forwarded connection.
type pair struct {
	data, errors httpstream.Stream
	replied      []<-chan struct{}
	timer        *time.Timer
}

// lookEvery is how often a connection is checked for a client that has left while a port does not read.
const lookEvery = 10 * time.Second

// serveForward serves a connection with SPDY until the client leaves, which it checks from time to time, or ctx ends.
func serveForward(w http.ResponseWriter, req *http.Request, rt Runtime, pod string, idle, every time.Duration) {
	if _, err := httpstream.Handshake(req, w, portforward.SupportedProtocols); err != nil {
		return // it has answered
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	f := &forwarding{rt: rt, pod: pod, cancel: cancel, pairs: map[string]*pair{}}
	guard := streamguard.New(w, func(string) int { return 1 << 30 }) // accept counts those that are open
	defer guard.Close()
	ready := make(chan struct{}) // f.conn is set
	f.conn = spdy.NewResponseUpgrader().UpgradeResponse(guard, req,
		func(s httpstream.Stream, replied <-chan struct{}) error {
			select {
			case <-ready:
				return f.accept(ctx, s, replied)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	if f.conn == nil {
		return // it has answered
	}
	defer func() { _ = f.conn.Close() }() // resets what is open: whatever waits for one of its streams goes on
	close(ready)
	f.conn.SetIdleTimeout(idle)
	look := time.NewTicker(every)
	defer look.Stop()
	for {
		select {
		case <-f.conn.CloseChan():
			return
		case <-ctx.Done():
			return
		case <-look.C:
			if guard.Left() {
				return
			}
		}
	}
}

// accept adds a stream that the client has opened. Frames that follow wait for it, so it does not block.
func (f *forwarding) accept(ctx context.Context, s httpstream.Stream, replied <-chan struct{}) error {
	port, err := strconv.ParseUint(s.Headers().Get(portforward.PortHeader), 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("invalid port %.20q", s.Headers().Get(portforward.PortHeader))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == mostStreams {
		f.cancel(streamguard.ErrTooMany)
		return streamguard.ErrTooMany
	}
	id := requestOf(s)
	p := f.pairs[id]
	if p == nil {
		p = &pair{}
	}
	switch kind := s.Headers().Get(portforward.StreamType); {
	case kind == portforward.StreamTypeData && p.data == nil:
		p.data = s
	case kind == portforward.StreamTypeError && p.errors == nil:
		p.errors = s
	default:
		return fmt.Errorf("invalid stream type %.20q, or a second one", kind)
	}
	f.open++
	p.replied = append(p.replied, replied)
	if p.data != nil && p.errors != nil {
		delete(f.pairs, id)
		p.timer.Stop()
		go f.forward(ctx, p, int32(port))
		return nil
	}
	f.pairs[id] = p
	p.timer = time.AfterFunc(pairTimeout, func() { f.expire(id, p) })
	return nil
}

// requestOf returns which pair a stream belongs to. Old clients do not name it: the IDs of their two streams follow
// each other, that of the error stream is first.
func requestOf(s httpstream.Stream) string {
	if id := s.Headers().Get(portforward.PortForwardRequestIDHeader); id != "" {
		return id
	}
	n := int64(s.Identifier())
	if s.Headers().Get(portforward.StreamType) == portforward.StreamTypeData {
		n -= 2
	}
	return strconv.FormatInt(n, 10)
}

// expire resets the stream of a pair that is still incomplete.
func (f *forwarding) expire(id string, p *pair) {
	f.mu.Lock()
	late := f.pairs[id] == p
	if late {
		delete(f.pairs, id)
	}
	f.mu.Unlock()
	if late {
		f.end(p)
	}
}

// forward connects a pair with the port until one of them ends, or ctx.
func (f *forwarding) forward(ctx context.Context, p *pair, port int32) {
	defer f.end(p)
	for _, replied := range p.replied {
		select { // the reply is the first frame that the client gets
		case <-replied:
		case <-ctx.Done():
			return
		}
	}
	err := f.rt.PortForward(ctx, f.pod, port, p.data)
	if err != nil && ctx.Err() == nil {
		_, _ = fmt.Fprintf(p.errors, "error forwarding port %d to pod %s, uid : %v", port, f.pod, err)
		return // the reset shows that something failed
	}
	_ = errors.Join(p.data.Close(), p.errors.Close())
}

// end releases the streams of a pair. A stream that was closed is not reset for the client.
func (f *forwarding) end(p *pair) {
	n := 0
	for _, s := range []httpstream.Stream{p.data, p.errors} {
		if s != nil {
			_ = s.Reset() // the client may be gone
			f.conn.RemoveStreams(s)
			n++
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open -= n
}
