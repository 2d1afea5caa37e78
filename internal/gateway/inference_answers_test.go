package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan/inferenceapi"
)

// logged writes an access log, and returns its path.
func (l *inferenceLab) logged() string {
	l.t.Helper()
	path := filepath.Join(l.t.TempDir(), "access.log")
	l.seen.log = newAccessLog(path, l.seen.figures)
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); l.seen.log.Run(ctx) }()
	l.t.Cleanup(func() { cancel(); <-done })
	return path
}

// Answers may be long (ANSWER is how many MiB), one line, or come byte by byte, and lie about their tokens: the client
// gets all of it, what the usage says counts as far as it can be, and memory does not grow with the answer.
func TestOddAnswers(t *testing.T) {
	size := 64 << 20
	if more, err := strconv.Atoi(os.Getenv("ANSWER")); err == nil {
		size = more << 20
	}
	const invalid = `"usage":{"prompt_tokens":-1,"completion_tokens":1e309,"prompt_tokens":"9","total_tokens":{"x":` +
		`{"prompt_tokens":8}},"prompt_tokens_details":{"cached_tokens":[7]}}`
	const valid = `"usage":{"prompt_tokens":3,"completion_tokens":4}`
	part := bytes.Repeat([]byte("x"), 1<<20)
	l := newInferenceLab(t)
	path := l.logged()
	used := make(chan int64, 2)
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		switch r.URL.Path {
		case "/metrics":
			answering(w, r)
		case "/line":
			_, _ = io.WriteString(w, "data: {"+invalid+",\"text\":\"")
			for n := 0; n < size; n += len(part) {
				_, _ = w.Write(part)
				if n == size/4 || n+len(part) == size {
					used <- inUse()
				}
			}
			_, _ = io.WriteString(w, "\","+valid+"}")
		case "/bytes":
			for _, b := range []byte("data: {" + valid + "}\n\ndata: {" + invalid + "}\n\n") {
				_, _ = w.Write([]byte{b})
				_ = http.NewResponseController(w).Flush()
			}
		case "/only-invalid":
			_, _ = io.WriteString(w, "data: {"+invalid+"}\n\n")
		}
	})
	l.serveNow()
	post := func(at string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.http+at,
			strings.NewReader(`{"model":"m","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "x"
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for i, c := range []struct {
		at            string
		length        int
		input, output int
	}{
		{"/line", len("data: {") + len(invalid) + len(`,"text":"`) + size + len(`",`) + len(valid) + 1, 3, 4},
		{"/bytes", len("data: {}\n\ndata: {}\n\n") + len(valid) + len(invalid), 3, 4},
		{"/only-invalid", len("data: {}\n\n") + len(invalid), 0, 0},
	} {
		res := post(c.at)
		n, err := io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if err != nil || n != int64(c.length) {
			t.Errorf("%s: %d bytes of %d, %v", c.at, n, c.length, err)
		}
		line := logLines(t, path, i+1)[i]
		if line.InputTokens != c.input || line.OutputTokens != c.output {
			t.Errorf("%s: %+v", c.at, line.Inferred)
		}
	}
	if early, late := <-used, <-used; late-early > 8<<20 {
		t.Errorf("%d bytes more are in use at the end of the long answer", late-early)
	}
	testwait.For(t, "all bytes are given back", func() bool { return l.bodies.Used() == 0 })
}

// A client that ends its side of a connection of HTTP/1.1 has gone, as for net/http, if the answer takes longer than a
// moment. A server may end its side.
func TestHalfClosed(t *testing.T) {
	l := newInferenceLab(t)
	gone := make(chan struct{}, 1)
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			answering(w, r)
		case "/wait":
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			gone <- struct{}{}
		default: // without a length, until the end of the connection
			conn, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n")
			_ = rw.Flush()
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn) // until the gateway closes it
		}
	})
	l.serveNow()
	conn, err := net.Dial("tcp", l.http)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const body = `{"model":"m"}`
	send := func(path string) {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	}
	in := bufio.NewReader(conn)
	send("/v1/completions")
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != "data: x\n\n" {
		t.Errorf("of a server that ends its side: %q %v", text, err)
	}
	send("/wait")
	_ = conn.(*net.TCPConn).CloseWrite()
	<-gone
	testwait.For(t, "nothing is left", func() bool {
		return l.bodies.Used() == 0 && l.seen.figures.inFlight.Load() == 0
	})
}

// A client that waits for 100 Continue gets it from the gateway, which has the body when a server gets the request: the
// server need not say so again, and the request does not wait for it.
func TestClientWaitsForContinue(t *testing.T) {
	l := newInferenceLab(t)
	expected := make(chan string, 1)
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			expected <- r.Header.Get("Expect")
		}
		answering(w, r)
	})
	l.serveNow()
	conn, err := net.Dial("tcp", l.http)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const body = `{"model":"m"}`
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"+
		"Content-Length: %d\r\n\r\n", len(body))
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, " 100 ") {
		t.Fatalf("%q %v", line, err)
	}
	_, _ = in.ReadString('\n')
	_, _ = io.WriteString(conn, body)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Error(res.Status)
	}
	if got := <-expected; got != "" {
		t.Errorf("the server is expected to send %s", got)
	}
}

// gRPC passes through a pool: responses of trailers only, statuses after messages, and streams that are reset, by
// carob's picker and by one that is called for it.
func TestGRPCThroughAPool(t *testing.T) {
	for what, external := range map[string]bool{"own": false, "external": true} {
		t.Run(what, func(t *testing.T) {
			l := newInferenceLab(t)
			methods := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/metrics" {
					answering(w, r)
					return
				}
				w.Header().Set("Content-Type", "application/grpc")
				switch r.URL.Path {
				case "/s/TrailersOnly":
					w.Header().Set("Grpc-Status", "9")
					w.Header().Set("Grpc-Message", "no: 100%25")
				case "/s/Half":
					w.Header().Set("Trailer", "Grpc-Status")
					_, _ = w.Write(make([]byte, 5))
					w.Header().Set("Grpc-Status", "15")
				case "/s/ResetAtOnce":
					panic(http.ErrAbortHandler)
				case "/s/Reset":
					_, _ = w.Write(make([]byte, 5))
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				default:
					_, _ = io.Copy(io.Discard, r.Body)
					w.Header().Set("Trailer", "Grpc-Status")
					_, _ = w.Write(make([]byte, 5))
					w.Header().Set("Grpc-Status", "0")
				}
			})
			l.server(1, methods)
			var picker *fakePicker
			if external {
				picker, _ = l.picker()
				picker.pick = func([]byte) []*extprocv3.ProcessingResponse {
					return []*extprocv3.ProcessingResponse{toward(fmt.Sprintf("%s:%d", l.pods[0].Status.PodIP, l.port))}
				}
			}
			l.h2cPool()
			if external {
				l.world.Inference.Pools[0].Spec.EndpointPickerRef = &inferenceapi.Picker{Name: "picker",
					Port: &inferenceapi.Port{Number: 80}, FailureMode: "FailClose"}
			}
			l.serveNow()
			conn, err := grpc.NewClient(l.http, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for method, want := range map[string]struct {
				codes    []grpccodes.Code
				messages int
			}{
				"TrailersOnly": {[]grpccodes.Code{grpccodes.FailedPrecondition}, 0},
				"Half":         {[]grpccodes.Code{grpccodes.DataLoss}, 1},
				"ResetAtOnce":  {[]grpccodes.Code{grpccodes.Unavailable, grpccodes.Internal}, 0},
				"Reset":        {[]grpccodes.Code{grpccodes.Internal, grpccodes.Unavailable}, 1},
				"Call":         {[]grpccodes.Code{grpccodes.OK}, 1},
			} {
				messages, code := grpcCall(t, conn, method)
				ok := false
				for _, c := range want.codes {
					ok = ok || c == code
				}
				if !ok || messages != want.messages {
					t.Errorf("%s: %s after %d messages", method, code, messages)
				}
			}
			text := "Service Unavailable"
			if external {
				text = "Too Many Requests"
				picker.mu.Lock()
				picker.pick = func([]byte) []*extprocv3.ProcessingResponse {
					return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
						ImmediateResponse: &extprocv3.ImmediateResponse{Status: &typev3.HttpStatus{Code: 429}}}}}
				}
				picker.mu.Unlock()
			}
			l.pods = nil
			l.serveNow()
			err = conn.Invoke(t.Context(), "/s/Call", &emptypb.Empty{}, &emptypb.Empty{})
			if s := status.Convert(err); s.Code() != grpccodes.Unavailable || s.Message() != text {
				t.Errorf("refused: %v", err)
			}
			testwait.For(t, "nothing is left", func() bool {
				return l.bodies.Used() == 0 && l.seen.figures.inFlight.Load() == 0
			})
		})
	}
}

// grpcCall calls a method whose answer is a stream, and returns how many messages it had, and its status.
func grpcCall(t *testing.T, conn *grpc.ClientConn, method string) (messages int, code grpccodes.Code) {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-test", "1")
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/s/"+method)
	if err != nil {
		return 0, status.Code(err)
	}
	_ = s.SendMsg(&emptypb.Empty{})
	_ = s.CloseSend()
	for {
		if err := s.RecvMsg(&emptypb.Empty{}); err != nil {
			if err == io.EOF { //nolint:errorlint // what gRPC returns
				return messages, grpccodes.OK
			}
			return messages, status.Code(err)
		}
		messages++
	}
}
