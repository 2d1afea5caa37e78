// Package extproc calls an endpoint picker by Envoy's external processing protocol (ext_proc v3) to choose the
// endpoints of a request, as the endpoint picker protocol of the Gateway API inference extension specifies: one stream
// for each request, the body in the mode FULL_DUPLEX_STREAMED.
//
// Contract: docs/spec/inference-gateway.md, 2.1.
package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
)

// The names of the protocol.
const (
	Destination = "x-gateway-destination-endpoint"        // header and key: the endpoints of the request
	Served      = "x-gateway-destination-endpoint-served" // key: the endpoint that responded
	namespace   = "envoy.lb"                              // of both keys
)

// Limits of a picker's messages.
const (
	chunk        = 62000 // bytes of a body in one message
	mostBody     = 32 << 20
	mostEndpoint = 16
)

// Client calls one picker. It connects at the first call.
type Client struct {
	conn     *grpc.ClientConn
	patience time.Duration
}

// New makes a client. dial connects to any server of the picker; secure is nil for a connection without TLS.
func New(dial func(context.Context) (net.Conn, error), secure *tls.Config) (*Client, error) {
	creds := insecure.NewCredentials()
	if secure != nil {
		creds = credentials.NewTLS(secure)
	}
	conn, err := grpc.NewClient("passthrough:///endpoint-picker", grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, fmt.Errorf("make a client for an endpoint picker: %w", err)
	}
	return &Client{conn, patience}, nil
}

// Close ends the connections.
func (c *Client) Close() { _ = c.conn.Close() }

// Picked is the decision of a picker. Body is nil if the body stays unchanged.
type Picked struct {
	Endpoints []netip.AddrPort // in order
	Headers   Change           // of the request
	Body      []byte
	// Answer is the response to the client; nil: the request continues.
	Answer *Answer

	mode *filterv3.ProcessingMode // the parts of the response that the picker requests; nil: all
}

// Answer is a response that the picker itself sends to the client, such as 429.
type Answer struct {
	Status  int
	Headers Change
	Body    []byte
}

// Change is a change of headers: those to set, and those to remove.
type Change struct {
	Set    http.Header
	Remove []string
}

// Apply changes headers. To set a header means to replace it: the last value counts. Some pickers return all headers
// that they received: a header with several values keeps them if the picker returned all of them.
func (c *Change) Apply(h http.Header) {
	for name, all := range c.Set {
		lost := slices.ContainsFunc(h[name], func(v string) bool { return !slices.Contains(all, v) })
		if len(h[name]) < 2 || lost {
			h[name] = all[len(all)-1:]
		}
	}
	for _, name := range c.Remove {
		delete(h, name)
	}
}

// Stream is the gRPC stream of one request. Close ends it.
type Stream struct {
	client *Client
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
	mode   *filterv3.ProcessingMode
}

// Close ends the stream: the request is over.
func (s *Stream) Close() { s.cancel() }

// Pick requests the endpoints of a request. body is the whole body; nil: there is none.
func (c *Client) Pick(ctx context.Context, r *http.Request, body []byte) (*Stream, *Picked, error) {
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives the pick
	stop := context.AfterFunc(ctx, cancel)
	stream, err := extprocv3.NewExternalProcessorClient(c.conn).Process(streaming)
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("call the endpoint picker: %w", err)
	}
	var sending sync.WaitGroup
	sending.Go(func() { send(stream, r, body) })
	picked, err := receive(stream, body)
	if err != nil || picked.Answer != nil {
		cancel()
	}
	sending.Wait()
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("call the endpoint picker: %w", err)
	}
	return &Stream{c, stream, cancel, picked.mode}, picked, nil
}

// send sends the request's headers and body. The receiver gets its errors.
func send(stream extprocv3.ExternalProcessor_ProcessClient, r *http.Request, body []byte) {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	headers := []*corev3.HeaderValue{pair(":method", r.Method), pair(":path", r.URL.RequestURI()),
		pair(":authority", r.Host), pair(":scheme", scheme)}
	err := stream.Send(&extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: append(headers, pairs(r.Header)...)}, EndOfStream: body == nil}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{
			RequestBodyMode:  filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED}})
	for at := 0; body != nil && err == nil; {
		n := min(chunk, len(body)-at)
		at += n
		err = stream.Send(&extprocv3.ProcessingRequest{
			Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{
				Body: body[at-n : at], EndOfStream: at == len(body)}}})
		if at == len(body) {
			return
		}
	}
}

// chunks is how many messages a body takes.
func chunks(body []byte) int {
	if body == nil {
		return 0
	}
	return max(1, (len(body)+chunk-1)/chunk)
}

var errTooMuch = errors.New("the picker's body is too large")

// receive reads until the responses to the headers and the whole body have arrived. Those to the body may arrive first
// (2.1).
func receive(stream extprocv3.ExternalProcessor_ProcessClient, body []byte) (*Picked, error) {
	out := &Picked{Headers: Change{Set: http.Header{}}}
	headers, left := false, chunks(body)
	for !headers || left > 0 {
		m, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if at := destination(m.GetDynamicMetadata()); at != nil {
			out.Endpoints = at
		}
		if v := m.GetModeOverride(); v != nil {
			out.mode = v
		}
		switch v := m.GetResponse().(type) {
		case *extprocv3.ProcessingResponse_ImmediateResponse:
			out.Answer = immediate(v.ImmediateResponse)
			return out, nil
		case *extprocv3.ProcessingResponse_RequestHeaders:
			headers = true
			out.take(v.RequestHeaders.GetResponse().GetHeaderMutation())
		case *extprocv3.ProcessingResponse_RequestBody:
			common := v.RequestBody.GetResponse()
			out.take(common.GetHeaderMutation())
			switch b := common.GetBodyMutation().GetMutation().(type) {
			case *extprocv3.BodyMutation_StreamedResponse:
				if out.Body = append(out.Body, b.StreamedResponse.GetBody()...); len(out.Body) > mostBody {
					return nil, errTooMuch
				}
				if left = 1; b.StreamedResponse.GetEndOfStream() {
					left = 0
				}
				if out.Body == nil {
					out.Body = []byte{}
				}
			case *extprocv3.BodyMutation_Body:
				if out.Body = append(out.Body, b.Body...); len(out.Body) > mostBody {
					return nil, errTooMuch
				}
				left--
			default:
				left--
			}
		}
	}
	return out, nil
}

// take records changes of headers, and the endpoints of the request if they are set.
func (p *Picked) take(m *extprocv3.HeaderMutation) {
	if m == nil {
		return
	}
	c := change(m)
	for name, v := range c.Set {
		p.Headers.Set[name] = v
		if strings.EqualFold(name, Destination) && p.Endpoints == nil {
			p.Endpoints = endpoints(v[len(v)-1])
		}
	}
	p.Headers.Remove = append(p.Headers.Remove, c.Remove...)
}

func pair(name, value string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: name, RawValue: []byte(value)}
}

func pairs(h http.Header) (out []*corev3.HeaderValue) {
	for name, all := range h {
		for _, v := range all {
			out = append(out, pair(strings.ToLower(name), v))
		}
	}
	return out
}

// owned are headers that only the gateway sets: otherwise a picker could break the framing of messages.
func owned(name string) bool {
	switch name {
	case "Connection", "Content-Length", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Host", "Keep-Alive",
		"Proxy-Connection":
		return true
	}
	return false
}

// change reads a change of headers. To set means to replace, also if the picker does not specify it.
func change(m *extprocv3.HeaderMutation) *Change {
	c := &Change{Set: http.Header{}}
	for _, o := range m.GetSetHeaders() {
		name, v := o.GetHeader().GetKey(), o.GetHeader().GetValue()
		if raw := o.GetHeader().GetRawValue(); len(raw) > 0 {
			v = string(raw)
		}
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(v) {
			continue // also those that begin with a colon
		}
		if name = http.CanonicalHeaderKey(name); !owned(name) {
			c.Set[name] = append(c.Set[name], v)
		}
	}
	for _, name := range m.GetRemoveHeaders() {
		if name = http.CanonicalHeaderKey(name); !owned(name) {
			c.Remove = append(c.Remove, name)
		}
	}
	return c
}

func immediate(m *extprocv3.ImmediateResponse) *Answer {
	a := &Answer{Status: int(m.GetStatus().GetCode()), Headers: *change(m.GetHeaders()), Body: m.GetBody()}
	if a.Status < 200 || a.Status > 599 {
		a.Status = http.StatusInternalServerError
	}
	return a
}

// destination reads the endpoints from the metadata; nil: it has none.
func destination(m *structpb.Struct) []netip.AddrPort {
	lb := m.GetFields()[namespace].GetStructValue()
	if v, ok := lb.GetFields()[Destination].GetKind().(*structpb.Value_StringValue); ok {
		return endpoints(v.StringValue)
	}
	return nil
}

// endpoints reads a list of ip:port. Invalid elements are omitted.
func endpoints(list string) []netip.AddrPort {
	out := []netip.AddrPort{}
	for part := range strings.SplitSeq(list, ",") {
		if at, err := netip.ParseAddrPort(strings.TrimSpace(part)); err == nil && len(out) < mostEndpoint {
			out = append(out, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
		}
	}
	return out
}
