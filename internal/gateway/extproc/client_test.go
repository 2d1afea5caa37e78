package extproc

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A picker that sends all headers back changes none; what it sets replaces; framing and forms stay the gateway's.
func TestChange(t *testing.T) {
	m := &extprocv3.HeaderMutation{RemoveHeaders: []string{"x-gone", "content-length"}}
	for _, p := range [][2]string{{"x-served", "a"}, {"x-served", "a"}, {"set-cookie", "1"}, {"set-cookie", "2"},
		{"x-new", "1"}, {"x-new", "2"}, {"x-other", "3"}, {"content-length", "1"}, {"transfer-encoding", "chunked"},
		{":path", "/admin"}, {"x-bad", "a\r\nb: c"}, {"host", "evil"}, {"expect", "100-continue"}, {"bad name", "x"}} {
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{Header: pair(p[0], p[1])})
	}
	h := http.Header{"X-Served": {"a"}, "Set-Cookie": {"1", "2"}, "X-Other": {"1", "2"}, "X-Gone": {"x"},
		"Content-Length": {"9"}}
	c, _, err := change(m)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(h)
	want := http.Header{"X-Served": {"a"}, "Set-Cookie": {"1", "2"}, "X-New": {"2"}, "X-Other": {"3"},
		"Content-Length": {"9"}}
	if fmt.Sprint(h) != fmt.Sprint(want) {
		t.Errorf("%v, not %v", h, want)
	}
}

func TestEndpoints(t *testing.T) {
	got := endpoints(" 10.0.0.1:80,x,,[fd00::1]:81 ,10.0.0.2, ::ffff:10.0.0.3:82,[::ffff:10.0.0.4]:83")
	if fmt.Sprint(got) != "[10.0.0.1:80 [fd00::1]:81 10.0.0.4:83]" {
		t.Error(got)
	}
}

// hostile is a picker that sends all its messages at once when it gets the headers of a request.
type hostile struct {
	extprocv3.UnimplementedExternalProcessorServer
	send func(send func(*extprocv3.ProcessingResponse) error) error
}

func (h *hostile) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return h.send(stream.Send)
}

func (h *hostile) start(t *testing.T) *Client {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, over := grpc.NewServer(), make(chan error, 1)
	extprocv3.RegisterExternalProcessorServer(server, h)
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

// A picker that changes headers without end, or sends bodies for which there is no memory, ends its stream, and the
// memory is given back: nothing that it sends before it has decided is without a limit (2.1).
func TestHostilePickers(t *testing.T) {
	body := func(text string, end bool) *extprocv3.ProcessingResponse {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: streamedAs(text, end).GetResponseBody()}}
	}
	heads := func(name func(i int) string) *hostile {
		return &hostile{send: func(send func(*extprocv3.ProcessingResponse) error) error {
			for i := 0; ; i++ {
				m := &extprocv3.HeaderMutation{RemoveHeaders: []string{name(i)},
					SetHeaders: []*corev3.HeaderValueOption{option(name(i), strings.Repeat("v", 1000))}}
				if err := send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
					RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{
						HeaderMutation: m}}}}); err != nil {
					return err
				}
			}
		}}
	}
	for what, c := range map[string]struct {
		picker *hostile
		want   error
	}{
		"one header without end": {heads(func(int) string { return "x-a" }), errHeaders},
		"headers without end":    {heads(func(i int) string { return fmt.Sprint("x-", i) }), errHeaders},
		"a body without end": {&hostile{send: func(send func(*extprocv3.ProcessingResponse) error) error {
			for {
				if err := send(body(strings.Repeat("b", 10_000), false)); err != nil {
					return err
				}
			}
		}}, errNoMemory},
		"messages without an effect": {&hostile{send: func(send func(*extprocv3.ProcessingResponse) error) error {
			for {
				if err := send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
					RequestHeaders: changed(nil)}}); err != nil {
					return err
				}
			}
		}}, errUseless},
		"empty parts": {&hostile{send: func(send func(*extprocv3.ProcessingResponse) error) error {
			for {
				if err := send(body("", false)); err != nil {
					return err
				}
			}
		}}, errUseless},
		"a response with large headers": {&hostile{send: func(send func(*extprocv3.ProcessingResponse) error) error {
			return send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
				ImmediateResponse: &extprocv3.ImmediateResponse{Headers: &extprocv3.HeaderMutation{
					SetHeaders: []*corev3.HeaderValueOption{option("x-a", strings.Repeat("v", mostHeaders))}}}}})
		}}, errHeaders},
	} {
		client := c.picker.start(t)
		held, most := 0, 0
		client.reserve = func(n int64) bool {
			if n > 0 && held+int(n) > 1<<20 {
				return false
			}
			held += int(n)
			most = max(most, held)
			return true
		}
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		if _, _, err := client.Pick(t.Context(), r, []byte("prompt"), nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, not %v", what, err, c.want)
		}
		if held != 0 || errors.Is(c.want, errNoMemory) != (most > 0) {
			t.Errorf("%s: %d bytes are held, once %d", what, held, most)
		}
	}
}

// A picker may answer each message of a body by itself: its part stays, or is another, or none.
func TestPartsOfABody(t *testing.T) {
	first, second := strings.Repeat("1", chunk), strings.Repeat("2", chunk)
	const last = "3"
	none := &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_ClearBody{ClearBody: true}}
	other := &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: []byte("x")}}
	for what, c := range map[string]struct {
		parts [3]*extprocv3.BodyMutation
		want  string
	}{
		"all stay":          {},
		"the second":        {[3]*extprocv3.BodyMutation{nil, other, nil}, first + "x" + last},
		"the first":         {[3]*extprocv3.BodyMutation{other, nil, nil}, "x" + second + last},
		"none of the last":  {[3]*extprocv3.BodyMutation{nil, nil, none}, first + second},
		"none of any":       {[3]*extprocv3.BodyMutation{none, none, none}, ""},
		"the last two":      {[3]*extprocv3.BodyMutation{nil, other, other}, first + "xx"},
		"none of the first": {[3]*extprocv3.BodyMutation{none, nil, other}, second + "x"},
	} {
		client := (&hostile{send: func(send func(*extprocv3.ProcessingResponse) error) error {
			err := send(picked(&Choice{}, -1))
			for _, m := range c.parts {
				if err == nil {
					err = send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
						RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: m}}}})
				}
			}
			return err
		}}).start(t)
		stream, got, err := client.Pick(t.Context(), httptest.NewRequest(http.MethodPost, "/", nil),
			[]byte(first+second+last), nil)
		if err != nil {
			t.Fatal(err)
		}
		stream.Close()
		if string(got.Body) != c.want || (got.Body == nil) != (what == "all stay") {
			t.Errorf("%s: %d bytes, not %d", what, len(got.Body), len(c.want))
		}
	}
}

// A picker may acknowledge each message of a large body before it sends the whole.
func TestAcknowledgedMessages(t *testing.T) {
	whole := strings.Repeat("x", 3*mostIgnored*chunk)
	client := (&hostile{send: func(send func(*extprocv3.ProcessingResponse) error) error {
		err := send(picked(&Choice{}, -1))
		for i := 0; i <= chunks([]byte(whole)) && err == nil; i++ {
			text := ""
			if i == chunks([]byte(whole)) {
				text = "whole"
			}
			err = send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
				RequestBody: streamedAs(text, text != "").GetResponseBody()}})
		}
		return err
	}}).start(t)
	stream, got, err := client.Pick(t.Context(), httptest.NewRequest(http.MethodPost, "/", nil), []byte(whole), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if string(got.Body) != "whole" {
		t.Errorf("%.20q", got.Body)
	}
}

// The memory of a changed body is given back when it was sent, once.
func TestChangedBodyIsGivenBack(t *testing.T) {
	client := (&hostile{send: func(send func(*extprocv3.ProcessingResponse) error) error {
		out := picked(&Choice{}, -1)
		out.ModeOverride = &filterv3.ProcessingMode{ResponseHeaderMode: filterv3.ProcessingMode_SKIP}
		if err := send(out); err != nil {
			return err
		}
		return send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: streamedAs("another", true).GetResponseBody()}})
	}}).start(t)
	held := 0
	client.reserve = func(n int64) bool { held += int(n); return true }
	stream, got, err := client.Pick(t.Context(), httptest.NewRequest(http.MethodPost, "/", nil), []byte("prompt"), nil)
	if err != nil || string(got.Body) != "another" || held != len("another") {
		t.Fatalf("%v %+v, %d bytes are held", err, got, held)
	}
	if err := stream.Answered(t.Context(), &http.Response{StatusCode: http.StatusOK, Header: http.Header{}},
		Following{Cancel: func() {}}); err != nil || held != 0 {
		t.Errorf("%v, %d bytes are held after the answer", err, held)
	}
	stream.Close()
	if held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}

// The status of a picker's own response is a final one, and a response without a body has none.
func TestImmediate(t *testing.T) {
	for code, want := range map[int]string{0: "500 text", 100: "500 text", 101: "500 text", 999: "500 text",
		-1: "500 text", 204: "204 ", 304: "304 ", 429: "429 text", 200: "200 text"} {
		a, err := immediate(&extprocv3.ImmediateResponse{Body: []byte("text"),
			Status: &typev3.HttpStatus{Code: typev3.StatusCode(code)}}) //nolint:gosec // small
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%d %s", a.Status, a.Body); got != want {
			t.Errorf("%d: %q, not %q", code, got, want)
		}
		res := &http.Response{Header: http.Header{}}
		replace(res, a)
		if _, sized := res.Header["Content-Length"]; sized != (code != 204 && code != 304) {
			t.Errorf("%d: the length is announced: %v", code, sized)
		}
	}
}
