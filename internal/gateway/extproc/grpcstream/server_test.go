package grpcstream

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"carob/internal/base/testwait"
)

const echoPath = "/test.Echo/Echo"

// echo sends each message back, and leaves how it ended.
func echo(ended chan<- error) Method {
	return func(s *Stream) error {
		for {
			m := &wrapperspb.BytesValue{}
			err := s.Recv(m, 0)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				err = s.Send(m)
			}
			if err != nil {
				select {
				case ended <- err:
				default: // nobody asks
				}
				return err
			}
		}
	}
}

func limits() Limits {
	return Limits{Streams: 100, Connections: 20, Message: 1<<20 + 100, Messages: 4 << 20, MessageTime: time.Minute,
		StreamTime: time.Minute}
}

// start serves, and returns the address. When the test ends, nothing of the budget may be held.
func start(t *testing.T, s *Server) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- s.Serve(ctx, ln, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
		if s.Open() != 0 || s.budget.left != s.Limits.Messages || s.budget.all.Len() != 0 {
			t.Errorf("%d streams are open, %d bytes are left of %d", s.Open(), s.budget.left, s.Limits.Messages)
		}
	})
	return ln.Addr().String()
}

func dial(t *testing.T, at string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func open(t *testing.T, ctx context.Context, conn *grpc.ClientConn, path string) grpc.ClientStream {
	t.Helper()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// free is what is left.
func (b *budget) free() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left
}

// Messages of any size come back; what is not served, and what is too large, has a clear status.
func TestStreams(t *testing.T) {
	s := &Server{Limits: limits(), Methods: map[string]Method{echoPath: echo(make(chan error, 10))}}
	s.AddHealth("x")
	conn := dial(t, start(t, s))
	stream := open(t, t.Context(), conn, echoPath)
	for _, size := range []int{0, 1, firstBytes, 1 << 20, 3} {
		sent, got := wrapperspb.Bytes(bytes.Repeat([]byte("x"), size)), &wrapperspb.BytesValue{}
		if err := stream.SendMsg(sent); err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(got); err != nil || !bytes.Equal(got.GetValue(), sent.GetValue()) {
			t.Fatalf("%d: %d bytes, %v", size, len(got.GetValue()), err)
		}
	}
	_ = stream.CloseSend()
	if err := stream.RecvMsg(&wrapperspb.BytesValue{}); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	large := open(t, t.Context(), conn, echoPath)
	_ = large.SendMsg(wrapperspb.Bytes(make([]byte, 2<<20)))
	if err := large.RecvMsg(&wrapperspb.BytesValue{}); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	other := open(t, t.Context(), conn, "/test.Echo/Other")
	if err := other.RecvMsg(&wrapperspb.BytesValue{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	health := healthv1.NewHealthClient(conn)
	for name, want := range map[string]codes.Code{"": codes.OK, "x": codes.OK, "y": codes.NotFound} {
		got, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
		if status.Code(err) != want || err == nil && got.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v %v", name, got, err)
		}
	}
	watch, err := health.Watch(t.Context(), &healthv1.HealthCheckRequest{Service: "y"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := watch.Recv(); err != nil || got.GetStatus() != healthv1.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Errorf("%v %v", got, err)
	}
}

// raw is a client that does not keep to the protocol: what it sends is written to body.
type raw struct {
	body *io.PipeWriter
	res  chan *http.Response
}

func (r *raw) write(p []byte) { _, _ = r.body.Write(p) } // an error: the server has ended the stream

func rawStream(t *testing.T, client *http.Client, at string) *raw {
	t.Helper()
	from, to := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at+echoPath, from)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	r := &raw{to, make(chan *http.Response, 1)}
	go func() {
		res, err := client.Do(req)
		if err != nil {
			res = nil
		}
		r.res <- res
	}()
	return r
}

func rawClient(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{Protocols: &http.Protocols{}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// status reads the answer to its end, and returns its status.
func (r *raw) status(t *testing.T) string {
	t.Helper()
	res := <-r.res
	if res == nil {
		return "no answer"
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err.Error()
	}
	return res.Trailer.Get("Grpc-Status")
}

func announced(length int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(length)) }

// Streams that begin messages and never end them share a bounded memory; others are served meanwhile.
func TestUnfinishedMessages(t *testing.T) {
	const size, hostile = 1 << 20, 60
	s := &Server{Limits: limits(), Methods: map[string]Method{echoPath: echo(make(chan error, hostile))}}
	at := start(t, s)
	client, message := rawClient(t), append(announced(size), make([]byte, size-1)...) // all but one byte
	var sending sync.WaitGroup
	var all []*raw
	for range hostile {
		r := rawStream(t, client, at)
		all = append(all, r)
		sending.Go(func() { r.write(message) })
	}
	sending.Wait() // all have sent what they have, or were ended
	if s.budget.free() > size {
		t.Errorf("the memory is not full: %d bytes are left", s.budget.free())
	}
	stream := open(t, t.Context(), dial(t, at), echoPath)
	for range 20 {
		sent, got := wrapperspb.Bytes(make([]byte, size)), &wrapperspb.BytesValue{}
		if err := stream.SendMsg(sent); err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(got); err != nil || len(got.GetValue()) != size {
			t.Fatalf("another client is not served: %v", err)
		}
		if s.budget.free() < 0 {
			t.Errorf("%d bytes are left", s.budget.free())
		}
	}
	_ = stream.CloseSend()
	evicted := 0
	for i := range all {
		_ = all[i].body.Close() // those that are left end within a message
	}
	for _, r := range all {
		switch got := r.status(t); got {
		case "8": // RESOURCE_EXHAUSTED
			evicted++
		case "13":
		default:
			t.Errorf("status %s", got)
		}
	}
	if evicted < hostile-int(s.Limits.Messages/size)-1 {
		t.Errorf("%d of %d were ended", evicted, hostile)
	}
}

// A client that announces much and sends nothing takes little memory.
func TestAnnouncedMessages(t *testing.T) {
	s := &Server{Limits: limits(), Methods: map[string]Method{echoPath: echo(make(chan error, 100))}}
	at := start(t, s)
	client := rawClient(t)
	for range 20 {
		rawStream(t, client, at).write(append(announced(1<<20), 1))
	}
	testwait.For(t, "all have begun", func() bool {
		return s.budget.free() == s.Limits.Messages-20*firstBytes
	})
}

// What does not come in time ends: a message that stops in its middle, a client that does not take its answers, a
// stream that is open for too long, a deadline of the client.
func TestLate(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*Limits)
		client func(t *testing.T, at string)
		want   string
	}{
		"a message": {func(l *Limits) { l.MessageTime = time.Millisecond }, func(t *testing.T, at string) {
			t.Helper()
			rawStream(t, rawClient(t), at).write(append(announced(99), 1))
		}, errLate.Error()},
		"taking an answer": {func(l *Limits) { l.MessageTime = 50 * time.Millisecond }, func(t *testing.T, at string) {
			t.Helper()
			stream := open(t, t.Context(), dial(t, at), echoPath)
			for stream.SendMsg(wrapperspb.Bytes(make([]byte, 1<<20))) == nil { // and reads nothing
			}
		}, errLate.Error()},
		"the stream": {func(l *Limits) { l.StreamTime = time.Millisecond }, func(t *testing.T, at string) {
			t.Helper()
			err := open(t, t.Context(), dial(t, at), echoPath).RecvMsg(&wrapperspb.BytesValue{})
			if status.Code(err) != codes.DeadlineExceeded {
				t.Error(err)
			}
		}, errLife.Error()},
		"the client": {func(*Limits) {}, func(t *testing.T, at string) {
			t.Helper()
			short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			err := open(t, short, dial(t, at), echoPath).RecvMsg(&wrapperspb.BytesValue{})
			if status.Code(err) != codes.DeadlineExceeded {
				t.Error(err)
			}
		}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			ended := make(chan error, 1)
			s := &Server{Limits: limits(), Methods: map[string]Method{echoPath: echo(ended)}}
			c.change(&s.Limits)
			c.client(t, start(t, s))
			if err := <-ended; c.want != "" && err.Error() != c.want {
				t.Error(err)
			}
		})
	}
}

func TestTimeout(t *testing.T) {
	for text, want := range map[string]time.Duration{"1H": time.Hour, "10m": 10 * time.Millisecond, "7n": 7,
		"99999999S": 99999999 * time.Second, "99999999H": 1 << 20 * time.Hour, "": -1, "S": -1, "1": -1, "-1S": -1,
		"999999999S": -1, "1x": -1, "1.5S": -1} {
		got, ok := timeout(text)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %v %v", text, got, ok)
		}
	}
}

// The share that has not moved for the longest time is lost, never that of who takes.
func TestBudget(t *testing.T) {
	b := &budget{left: 10}
	var lost []int
	shares := make([]*share, 4)
	for i := range shares {
		shares[i] = &share{of: b, evict: func() { lost = append(lost, i) }}
	}
	take := func(i int, n int64, want bool) {
		t.Helper()
		if got := shares[i].take(n); got != want {
			t.Errorf("share %d takes %d: %v; %d are left", i, n, got, b.left)
		}
	}
	take(0, 4, true)
	take(1, 4, true)
	shares[0].moved()
	take(2, 4, true) // from 1
	take(1, 1, false)
	take(2, 9, false) // with all of 0 it were 13
	take(3, 11, false)
	if len(lost) != 3 || lost[0] != 1 || lost[1] != 0 || lost[2] != 2 || b.left != 10 {
		t.Errorf("%v are lost, %d are left", lost, b.left)
	}
	shares[1].free() // again
	if b.left != 10 || b.all.Len() != 0 {
		t.Errorf("%d are left", b.left)
	}
}

func TestPercent(t *testing.T) {
	if got := percent("a %\n\xc3\xa9~"); got != "a %25%0A%C3%A9~" {
		t.Error(got)
	}
}
