package extproc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"carob/internal/gateway/extproc/grpcstream"
)

// echoRequest is a Request that sends the body back, and records how it ended.
type echoRequest struct {
	whole  bool
	body   []byte
	pick   chan struct{} // nil: at once
	served netip.AddrPort
	answer []byte
	ended  chan bool
}

func (a *echoRequest) Whole() bool { return a.whole }
func (a *echoRequest) Body(p []byte) error {
	if a.body = append(a.body, p...); len(a.body) > 1<<20 {
		return &Refused{413, "x-reason", "large", "too large"}
	}
	return nil
}
func (a *echoRequest) Pick(ctx context.Context) (*Choice, error) {
	if a.pick != nil {
		select {
		case <-a.pick:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &Choice{Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80")},
		Body: [][]byte{[]byte("<"), a.body, []byte(">")}}, nil
}
func (a *echoRequest) Sent() {}
func (a *echoRequest) Answered(_ int, served netip.AddrPort) map[string]string {
	a.served = served
	return map[string]string{"X-Session": "1"}
}
func (a *echoRequest) AnswerPart(p []byte) { a.answer = append(a.answer, p...) }
func (a *echoRequest) End(complete bool)   { a.ended <- complete }

// start serves with short times, and returns a connection to it. Each request gets an asker from begin.
func start(t *testing.T, s *Server) *grpc.ClientConn {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- s.Serve(ctx, ln, nil) }()
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
		if n := s.grpc.Open(); n != 0 {
			t.Errorf("%d streams are left", n)
		}
		_ = conn.Close()
	})
	return conn
}

func server(a *echoRequest) *Server {
	a.ended = make(chan bool, 10)
	return &Server{limits: grpcstream.Limits{Streams: 3, Connections: 10, Message: mostMessage, Messages: mostMessages,
		MessageTime: time.Minute, StreamTime: time.Minute},
		Begin: func(pool, _ string, _ http.Header, subset []netip.AddrPort) (Request, bool) {
			if len(subset) == 2 {
				a.served = subset[1]
			}
			return a, pool != "none"
		}}
}

func requestHeaders(end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{}, EndOfStream: end}}}
}

func requestBody(text string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: end}}}
}

func responseHeaders(end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{}, EndOfStream: end}}}
}

func responseBody(text string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: end}}}
}

// answered shows an answer to the picker, and reads it.
func answered(t *testing.T, s *Stream, by netip.AddrPort) {
	t.Helper()
	res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: 5,
		Body: io.NopCloser(strings.NewReader("token"))}
	if err := s.Answered(t.Context(), res, Following{Served: by, Cancel: func() {},
		Reserve: func(int64) bool { return true }}); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(res.Body); err != nil || string(got) != "token" || res.Header.Get("X-Session") != "1" {
		t.Errorf("%q %v %v", got, res.Header, err)
	}
	_ = res.Body.Close()
}

// The picker chooses among the endpoints that the client names.
func TestHint(t *testing.T) {
	want := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:8000"), netip.MustParseAddrPort("[fd00::1]:8001")}
	if got := subsetOf(hint(want)); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if got := subsetOf(hint(nil)); got != nil {
		t.Errorf("without a hint: %v", got)
	}
	if got := subsetOf(hint(make([]netip.AddrPort, 2*mostSubset))); len(got) > mostSubset {
		t.Errorf("%d endpoints", len(got))
	}
}

// carob's own client and server understand each other; large bodies go in parts.
func TestClientAndServer(t *testing.T) {
	for _, size := range []int{0, 1, chunk, 5*chunk + 7} {
		a := &echoRequest{whole: true}
		conn := start(t, server(a))
		body := bytes.Repeat([]byte("x"), size)
		c := newClient(conn, nil)
		stream, got, err := c.Pick(t.Context(), httptest.NewRequest(http.MethodPost, "/v1/completions", nil), body, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Endpoints) != 1 || string(got.Body) != "<"+string(body)+">" {
			t.Errorf("%d: %v, %d bytes", size, got.Endpoints, len(got.Body))
		}
		if fmt.Sprint(got.Headers.Remove) != "[X-Prefiller-Host-Port X-Encoder-Hosts-Ports X-Kv-Cache-Source-Host-Port "+
			"X-Data-Parallel-Host-Port]" {
			t.Errorf("of the client's headers these are removed: %v", got.Headers.Remove)
		}
		by := netip.MustParseAddrPort("10.0.0.2:81")
		answered(t, stream, by)
		stream.Close()
		if complete := <-a.ended; !complete || a.served != by || string(a.answer) != "token" {
			t.Errorf("%v %v %q", complete, a.served, a.answer)
		}
	}
}

// The answer's body passes through; its end is the end of the request.
func TestAnswerPasses(t *testing.T) {
	a := &echoRequest{}
	stream, err := extprocv3.NewExternalProcessorClient(start(t, server(a))).Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*extprocv3.ProcessingRequest{requestHeaders(false), requestBody("a", false),
		requestBody("", true), responseHeaders(false), responseBody("to", false), responseBody("ken", true)} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		in, out := m.GetRequestBody(), got.GetRequestBody()
		if m.GetResponseBody() != nil {
			in, out = m.GetResponseBody(), got.GetResponseBody()
		}
		s := out.GetResponse().GetBodyMutation().GetStreamedResponse()
		if string(in.GetBody()) != string(s.GetBody()) || in.GetEndOfStream() != s.GetEndOfStream() {
			t.Errorf("%v: %v", m, got)
		}
	}
	if !<-a.ended || string(a.answer) != "token" || a.body != nil {
		t.Errorf("%q %q", a.answer, a.body)
	}
}

// A gateway that sends messages in the wrong order, or too much, gets an error, and nothing is left of the request.
func TestHostileOrder(t *testing.T) {
	type list = []*extprocv3.ProcessingRequest
	buffered := requestHeaders(false)
	buffered.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_BUFFERED}
	large := requestHeaders(false)
	large.GetRequestHeaders().Headers.Headers = []*corev3.HeaderValue{{Key: "x", RawValue: make([]byte, mostHeaders)}}
	for what, c := range map[string]struct {
		send  list
		begun bool
		code  codes.Code
	}{
		"body first":       {list{requestBody("x", true)}, false, codes.InvalidArgument},
		"nothing in it":    {list{{}}, false, codes.InvalidArgument},
		"two headers":      {list{requestHeaders(false), requestHeaders(false)}, true, codes.InvalidArgument},
		"answer too early": {list{requestHeaders(false), responseHeaders(false)}, true, codes.InvalidArgument},
		"body after end": {list{requestHeaders(false), requestBody("", true), requestBody("", true)}, true,
			codes.InvalidArgument},
		"answer's body first": {list{requestHeaders(true), responseBody("x", false)}, true, codes.InvalidArgument},
		"answered twice": {list{requestHeaders(true), responseHeaders(false), responseHeaders(false)}, true,
			codes.InvalidArgument},
		"buffered":      {list{buffered}, false, codes.InvalidArgument},
		"large headers": {list{large}, false, codes.ResourceExhausted},
		"large message": {list{requestHeaders(false), requestBody(string(make([]byte, mostMessage)), false)}, true,
			codes.ResourceExhausted},
	} {
		a := &echoRequest{whole: true}
		stream, err := extprocv3.NewExternalProcessorClient(start(t, server(a))).Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range c.send {
			_ = stream.Send(m) // it may have ended
		}
		for err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != c.code {
			t.Errorf("%s: %v", what, err)
		}
		if c.begun && <-a.ended {
			t.Errorf("%s: it counts as answered", what)
		}
	}
}

// A refusal is an answer for the client.
func TestRefusal(t *testing.T) {
	a := &echoRequest{whole: true}
	client := newClient(start(t, server(a)), nil)
	_, got, err := client.Pick(t.Context(), httptest.NewRequest(http.MethodPost, "/", nil), make([]byte, 2<<20), nil)
	if err != nil || got.Answer == nil || got.Answer.Status != 413 ||
		got.Answer.Headers.Set.Get("X-Reason") != "large" {
		t.Errorf("%+v: %v", got, err)
	}
	<-a.ended
}

// A gateway that stops within the body, before the answer, or during the pick holds nothing for long.
func TestStopped(t *testing.T) {
	for what, c := range map[string]struct {
		send       *extprocv3.ProcessingRequest
		part, life time.Duration
		pick       chan struct{}
	}{
		"in the body":       {requestHeaders(false), time.Millisecond, time.Minute, nil},
		"before the answer": {requestHeaders(true), time.Minute, time.Millisecond, nil},
		"in the pick":       {requestHeaders(true), time.Minute, time.Minute, make(chan struct{})},
	} {
		a := &echoRequest{whole: true, pick: c.pick}
		s := server(a)
		s.limits.MessageTime, s.limits.StreamTime = c.part, c.life
		var begun atomic.Bool
		begin := s.Begin
		s.Begin = func(pool, at string, h http.Header, subset []netip.AddrPort) (Request, bool) {
			begun.Store(true)
			return begin(pool, at, h, subset)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := extprocv3.NewExternalProcessorClient(start(t, s)).Process(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(c.send)
		if c.pick != nil {
			cancel()
		}
		for err == nil {
			_, err = stream.Recv()
		}
		want := codes.DeadlineExceeded
		if c.pick != nil {
			want = codes.Canceled
		}
		// A stream whose time is over while a message is sent is reset: the message may be incomplete.
		reset := c.life == time.Millisecond && status.Code(err) == codes.Internal
		if status.Code(err) != want && !reset {
			t.Errorf("%s: %v", what, err)
		}
		if c.pick == nil && begun.Load() && <-a.ended {
			t.Errorf("%s: it counts as answered", what)
		}
		cancel()
	}
}

// Streams above the limit are refused until one ends. An unknown pool is an error.
func TestManyStreams(t *testing.T) {
	a := &echoRequest{whole: true, pick: make(chan struct{})}
	client := extprocv3.NewExternalProcessorClient(start(t, server(a)))
	var open []extprocv3.ExternalProcessor_ProcessClient
	refused := 0
	for range 10 {
		stream, err := client.Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, stream)
	}
	errs := make(chan error, len(open))
	for _, s := range open {
		go func() { _, err := s.Recv(); errs <- err }()
	}
	for ; refused < 7; refused++ {
		if err := <-errs; status.Code(err) != codes.ResourceExhausted {
			t.Fatal(err)
		}
	}
	for _, s := range open {
		_ = s.CloseSend()
	}
	for range 3 {
		<-errs
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), PoolHeader, "none")
	err := status.Error(codes.ResourceExhausted, "")
	for status.Code(err) == codes.ResourceExhausted { // until the server has counted the ends
		var s extprocv3.ExternalProcessor_ProcessClient
		if s, err = client.Process(ctx); err == nil {
			_ = s.Send(requestHeaders(true))
			_, err = s.Recv()
		}
	}
	if status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}
