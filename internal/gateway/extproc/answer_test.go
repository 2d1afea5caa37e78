package extproc

import (
	"context"
	"errors"
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
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// script is a picker: it answers a message about the answer; nil: with nothing.
type script func(m *extprocv3.ProcessingRequest, nth int) ([]*extprocv3.ProcessingResponse, error)

// scripted is a picker that passes requests, and does what the script says with answers.
type scripted struct {
	extprocv3.UnimplementedExternalProcessorServer
	do   script
	mode *filterv3.ProcessingMode
	seen atomic.Int64 // parts of answers
}

func (s *scripted) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for n := 0; ; n++ {
		m, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the gateway has ended the stream
		}
		if m.GetRequestHeaders() != nil {
			out := picked(&Choice{Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80")}}, -1)
			out.ModeOverride = s.mode
			err, n = stream.Send(out), -1
		} else {
			if m.GetResponseBody() != nil {
				s.seen.Add(1)
			}
			var all []*extprocv3.ProcessingResponse
			all, err = s.do(m, n)
			for _, out := range all {
				if e := stream.Send(out); e != nil {
					return e
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *scripted) start(t *testing.T) *Client {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, over := grpc.NewServer(), make(chan error, 1)
	extprocv3.RegisterExternalProcessorServer(server, s)
	go func() { over <- server.Serve(ln) }()
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); server.Stop(); <-over })
	c := newClient(conn, nil)
	c.patience = time.Minute
	return c
}

func headOK() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{
			HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
				option("x-picker", "was here")}}}}}}
}

func bodyAs(m *extprocv3.BodyMutation) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
		ResponseBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: m}}}}
}

func streamedAs(text string, end bool) *extprocv3.ProcessingResponse {
	return bodyAs(&extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: []byte(text), EndOfStream: end}}})
}

func responsesOf(m *extprocv3.ProcessingResponse) []*corev3.HeaderValueOption {
	return m.GetResponseHeaders().GetResponse().GetHeaderMutation().GetSetHeaders()
}

type responses = []*extprocv3.ProcessingResponse

// passes is a picker that gives all back; parts changes it.
func passes(parts func(b *extprocv3.HttpBody, nth int) (responses, error)) script {
	return func(m *extprocv3.ProcessingRequest, nth int) (responses, error) {
		if m.GetResponseHeaders() != nil {
			return responses{headOK()}, nil
		}
		return parts(m.GetResponseBody(), nth)
	}
}

func same(b *extprocv3.HttpBody, _ int) (responses, error) {
	return responses{streamedAs(string(b.GetBody()), b.GetEndOfStream())}, nil
}

var errDied = status.Error(codes.Unavailable, "the picker ends")

// tokensOf is a model server's body that comes part by part, and ends with an error.
type tokensOf struct {
	parts  []string
	end    error
	closed atomic.Bool
}

func (b *tokensOf) Read(p []byte) (int, error) {
	if len(b.parts) == 0 {
		return 0, b.end
	}
	n := copy(p, b.parts[0])
	if b.parts[0] = b.parts[0][n:]; b.parts[0] == "" {
		b.parts = b.parts[1:]
	}
	return n, nil
}

func (b *tokensOf) Close() error { b.closed.Store(true); return nil }

// What the client gets, whatever the picker does with the answer, and whenever it fails (2.1, failure modes).
func TestAnswers(t *testing.T) {
	never := passes(func(*extprocv3.HttpBody, int) (responses, error) { return nil, nil })
	broken := errors.New("the server ended")
	for what, c := range map[string]struct {
		do       script
		end      error // of the server's body
		mode     *filterv3.ProcessingMode
		patience time.Duration
		memory   int64
		open     string // what the client gets with FailOpen, and with FailClose: body, then error
		closed   string
	}{
		"passes": {do: passes(same), open: "one two three", closed: "one two three"},
		"without mutation, as lwepp": {do: passes(func(*extprocv3.HttpBody, int) (responses, error) {
			return responses{bodyAs(nil)}, nil
		}), open: "one two three", closed: "one two three"},
		"other bytes": {do: passes(func(b *extprocv3.HttpBody, n int) (responses, error) {
			return responses{streamedAs(strings.ToUpper(string(b.GetBody())), b.GetEndOfStream())}, nil
		}), open: "ONE TWO THREE", closed: "ONE TWO THREE"},
		"other parts": {do: passes(func(b *extprocv3.HttpBody, n int) (responses, error) {
			return responses{bodyAs(&extprocv3.BodyMutation{
				Mutation: &extprocv3.BodyMutation_Body{Body: []byte(strings.ToUpper(string(b.GetBody())))}})}, nil
		}), open: "ONE TWO THREE", closed: "ONE TWO THREE"},
		"the whole at the end, as llm-d": {do: passes(func(b *extprocv3.HttpBody, n int) (responses, error) {
			if !b.GetEndOfStream() {
				return nil, nil
			}
			return responses{streamedAs("one", false), streamedAs(" two three", true)}, nil
		}), open: "one two three", closed: "one two three"},
		"the head after the body, twice": {do: func(m *extprocv3.ProcessingRequest, _ int) (responses, error) {
			if b := m.GetResponseBody(); b.GetEndOfStream() {
				return responses{streamedAs("", false), headOK(), headOK(), streamedAs("one two three", true)}, nil
			}
			return nil, nil
		}, open: "one two three", closed: "one two three"},
		"dies at the head": {do: func(*extprocv3.ProcessingRequest, int) (responses, error) { return nil, errDied },
			open: "one two three", closed: "no head"},
		"dies within the body": {do: passes(func(b *extprocv3.HttpBody, n int) (responses, error) {
			if n > 1 {
				return nil, errDied
			}
			return same(b, n)
		}), open: "one two three", closed: "one error"},
		"dies after it has changed the body": {do: passes(func(b *extprocv3.HttpBody, n int) (responses, error) {
			if n > 1 {
				return nil, errDied
			}
			return responses{streamedAs("ONE ", false)}, nil
		}), open: "ONE error", closed: "ONE error"},
		"ends without an error": {do: passes(func(b *extprocv3.HttpBody, n int) (responses, error) {
			if n > 1 {
				return nil, io.EOF
			}
			return same(b, n)
		}), open: "one two three", closed: "one two three"},
		"never answers the head": {do: func(*extprocv3.ProcessingRequest, int) (responses, error) { return nil, nil },
			patience: time.Millisecond, open: "one two three", closed: "no head"},
		"never gives the body back": {do: never, patience: 50 * time.Millisecond, open: "one two three",
			closed: "error"},
		"messages without a request": {do: func(*extprocv3.ProcessingRequest, int) (responses, error) {
			return slices.Repeat(responses{{}}, 2*mostIgnored), nil
		}, open: "one two three", closed: "no head"},
		"empty parts": {do: passes(func(*extprocv3.HttpBody, int) (responses, error) {
			return slices.Repeat(responses{streamedAs("", false)}, 2*mostIgnored), nil
		}), open: "one two three", closed: "error"},
		"a head that is too large": {do: func(m *extprocv3.ProcessingRequest, _ int) (responses, error) {
			if m.GetResponseHeaders() == nil {
				return nil, nil
			}
			out := headOK()
			large := option("x-large", strings.Repeat("x", mostHeaders))
			out.GetResponseHeaders().Response.HeaderMutation.SetHeaders = append(responsesOf(out), large)
			return responses{out}, nil
		}, open: "one two three", closed: "no head"},
		"no memory for what comes before the head": {do: func(m *extprocv3.ProcessingRequest, _ int) (responses, error) {
			if m.GetResponseHeaders() == nil {
				return nil, nil
			}
			large := slices.Repeat(responses{streamedAs(strings.Repeat("x", 1000), false)}, 100)
			return append(large, headOK(), streamedAs("", true)), nil
		}, memory: 10_000, open: "no head", closed: "no head"},
		"no memory for what it keeps": {do: never, memory: 6, open: "one two three", closed: "error"},
		"another answer": {do: func(*extprocv3.ProcessingRequest, int) (responses, error) {
			return responses{{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
				ImmediateResponse: &extprocv3.ImmediateResponse{Status: &typev3.HttpStatus{Code: 429},
					Body: []byte("evicted")}}}}, nil
		}, open: "evicted", closed: "evicted"},
		"another answer too late": {do: passes(func(*extprocv3.HttpBody, int) (responses, error) {
			return responses{{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
				ImmediateResponse: &extprocv3.ImmediateResponse{}}}}, nil
		}), open: "one two three", closed: "error"},
		"wants no bodies": {do: never, mode: &filterv3.ProcessingMode{}, open: "one two three",
			closed: "one two three"},
		"the server breaks off": {do: passes(same), end: broken, open: "one two threeerror",
			closed: "one two threeerror"},
		"the server breaks off, kept": {do: never, end: broken, open: "one two threeerror",
			closed: "one two threeerror"},
	} {
		for _, open := range []bool{true, false} {
			want := c.closed
			if open {
				want = c.open
			}
			picker := &scripted{do: c.do, mode: c.mode}
			client := picker.start(t)
			if c.patience > 0 {
				client.patience = c.patience
			}
			got, held := through(t, client, open, c.end, c.memory)
			early := want == "error" && got == "no head" // whether the head or the failure comes first is random
			if got != want && !early || held != 0 {
				t.Errorf("%s, FailOpen %v: %q, not %q; %d bytes are held", what, open, got, want, held)
			}
			if c.mode != nil && picker.seen.Load() > 0 {
				t.Errorf("%s: it saw %d parts", what, picker.seen.Load())
			}
		}
	}
}

// through passes an answer, and returns what the client sees of it.
func through(t *testing.T, client *Client, open bool, end error, memory int64) (string, int64) {
	t.Helper()
	stream, _, err := client.Pick(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if end == nil {
		end = io.EOF
	}
	var held atomic.Int64
	body := &tokensOf{parts: []string{"one ", "two ", "three"}, end: end}
	res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
		ContentLength: -1, Body: body}
	err = stream.Answered(t.Context(), res, Following{FailOpen: open, Cancel: func() {}, Reserve: func(n int64) bool {
		if memory > 0 && held.Load()+n > memory {
			return false
		}
		held.Add(n)
		return true
	}})
	if err != nil {
		if !errors.Is(err, ErrPicker) || !body.closed.Load() {
			t.Errorf("%v; the server's body is closed: %v", err, body.closed.Load())
		}
		return "no head", held.Load()
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if !body.closed.Load() {
		t.Error("the server's body is open")
	}
	got := string(text)
	if err != nil {
		got += "error"
	}
	return got, held.Load()
}

// A client that goes away while the picker says nothing ends the answer.
func TestClientGoes(t *testing.T) {
	picker := &scripted{do: func(*extprocv3.ProcessingRequest, int) (responses, error) { return nil, nil }}
	stream, _, err := picker.start(t).Pick(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = stream.Answered(ctx, &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody},
		Following{Cancel: cancel, Reserve: func(int64) bool { return true }})
	if !errors.Is(err, ErrPicker) {
		t.Error(err)
	}
}
