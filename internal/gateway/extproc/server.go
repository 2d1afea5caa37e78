package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"carob/internal/gateway/extproc/grpcstream"
)

// PoolHeader is the gRPC metadata that names the pool, as NAME.NAMESPACE. Without it the authority is used.
const PoolHeader = "x-carob-inference-pool"

// Limits of a server.
const (
	mostStreams     = 2048 // of all gateways
	mostConnections = 256
	mostMessage     = 1<<20 + 64<<10 // bytes; Envoy reads at most 1 MiB of a body at once
	mostMessages    = 128 << 20      // bytes of all that have begun to arrive
	mostHeaders     = 128 << 10      // bytes of a request's headers; Envoy takes 60 KiB
	partTime        = time.Minute    // between two messages of a request, and for one
	lifeTime        = time.Hour      // of a stream
)

// Request is a request for which a gateway calls the picker. One goroutine calls its methods; End is always called,
// once, as the last one.
type Request interface {
	// Whole reports whether Pick needs the body. If not, Body is not called.
	Whole() bool
	// Body passes a part of the body. The error is a *Refused.
	Body(part []byte) error
	// Pick chooses after the last part of the body. Errors that are no *Refused end the stream.
	Pick(ctx context.Context) (*Choice, error)
	// Sent announces that the body is not needed any more.
	Sent()
	// Answered passes the endpoint that responds; served is not valid if the gateway does not report it. It returns the
	// headers to set in the response.
	Answered(code int, served netip.AddrPort) map[string]string
	// AnswerPart passes a part of the response's body.
	AnswerPart(part []byte)
	// End announces the end: if complete, the whole response was received; otherwise the gateway has cancelled the
	// request.
	End(complete bool)
}

// Choice are the endpoints of a request.
type Choice struct {
	Endpoints []netip.AddrPort  // in order; at least one
	Headers   map[string]string // with names in lower case
	Body      [][]byte          // parts, of any length; not used unless the request is Whole
}

// Refused is a response that the client gets instead: the status, and the header Name with the reason.
type Refused struct {
	Status             int
	Name, Reason, Text string
}

func (r *Refused) Error() string { return r.Text }

// Server offers a picker to other gateways. Its fields are set before Serve.
type Server struct {
	// Begin finds the pool by its name (PoolHeader) or by the authority, and begins a request with these headers.
	// false: there is no such pool. subset are the only endpoints to choose from; port 0: any; nil: all of the pool.
	Begin func(pool, authority string, h http.Header, subset []netip.AddrPort) (Request, bool)

	limits grpcstream.Limits
	grpc   grpcstream.Server
}

// Serve serves until ctx is done, and closes ln. secure is nil for connections without TLS. It is called once.
func (s *Server) Serve(ctx context.Context, ln net.Listener, secure *tls.Config) error {
	if s.limits.Streams == 0 {
		s.limits = grpcstream.Limits{Streams: mostStreams, Connections: mostConnections, Message: mostMessage,
			Messages: mostMessages, MessageTime: partTime, StreamTime: lifeTime}
	}
	s.grpc.Limits = s.limits
	s.grpc.Methods = map[string]grpcstream.Method{extprocv3.ExternalProcessor_Process_FullMethodName: s.process}
	s.grpc.AddHealth("inference-extension", extprocv3.ExternalProcessor_ServiceDesc.ServiceName, "liveness",
		"readiness")
	return s.grpc.Serve(ctx, ln, secure)
}

// conversation is the server's side of a stream.
type conversation struct {
	server  *Server
	stream  *grpcstream.Stream
	request Request
	began   bool // the answer of the model server
}

var errOrder = status.Error(codes.InvalidArgument, "the message is out of order")

// process implements the protocol: request headers, the body, and then the answer's headers and body.
func (s *Server) process(stream *grpcstream.Stream) error {
	c := &conversation{server: s, stream: stream}
	err := c.converse()
	if errors.Is(err, io.EOF) {
		return nil // the gateway has given up
	}
	if refused, ok := errors.AsType[*Refused](err); ok {
		return stream.Send(refused.message())
	}
	return err
}

// converse returns nil when the gateway has ended the stream.
func (c *conversation) converse() error {
	m, err := c.next(true)
	if err != nil {
		return err
	}
	headers := m.GetRequestHeaders()
	if headers == nil {
		return errOrder
	}
	if proto.Size(m) > mostHeaders {
		return status.Error(codes.ResourceExhausted, "the headers are too large")
	}
	if p := m.GetProtocolConfig(); p != nil && !headers.GetEndOfStream() &&
		p.GetRequestBodyMode() != filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return status.Error(codes.InvalidArgument, "the mode of request bodies must be FULL_DUPLEX_STREAMED")
	}
	pool, authority := c.stream.Metadata(PoolHeader), c.stream.Authority()
	request, ok := c.server.Begin(pool, authority, httpHeaders(headers.GetHeaders()),
		subsetOf(m.GetMetadataContext()))
	if !ok {
		return status.Errorf(codes.NotFound, "no InferencePool of carob's picker is known as %q or %q", pool, authority)
	}
	c.request = request
	complete := false
	defer func() { request.End(complete) }()
	if headers.GetEndOfStream() || !request.Whole() {
		err = c.pass(headers.GetEndOfStream())
	} else {
		err = c.whole()
	}
	if err != nil {
		return err
	}
	request.Sent()
	complete, err = c.answer()
	return err
}

// next waits for a message. soon: it must come within the time of a message.
func (c *conversation) next(soon bool) (*extprocv3.ProcessingRequest, error) {
	limit := time.Duration(0)
	if soon {
		limit = c.server.limits.MessageTime
	}
	m := &extprocv3.ProcessingRequest{}
	if err := c.stream.Recv(m, limit); err != nil {
		return nil, err
	}
	return m, nil
}

// pick chooses. The messages before it are not needed any more: a pick may take long.
func (c *conversation) pick() (*Choice, error) {
	c.stream.Free()
	return c.request.Pick(c.stream.Context())
}

// pass picks at once, and passes the body through.
func (c *conversation) pass(end bool) error {
	choice, err := c.pick()
	if err != nil {
		return err
	}
	if err := c.stream.Send(picked(choice, -1)); err != nil {
		return err
	}
	for !end {
		m, err := c.next(true)
		if err != nil {
			return err
		}
		switch v := m.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestBody:
			end = v.RequestBody.GetEndOfStream()
			err = sendBody([][]byte{v.RequestBody.GetBody()}, end, func(r *extprocv3.BodyResponse) error {
				return c.stream.Send(&extprocv3.ProcessingResponse{
					Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: r}})
			})
		case *extprocv3.ProcessingRequest_RequestTrailers:
			end = true
			err = c.trailers()
		default:
			err = errOrder
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// whole picks when the body is complete.
func (c *conversation) whole() error {
	trailers := false
	for end := false; !end; {
		m, err := c.next(true)
		if err != nil {
			return err
		}
		switch v := m.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestBody:
			end = v.RequestBody.GetEndOfStream()
			err = c.request.Body(v.RequestBody.GetBody())
		case *extprocv3.ProcessingRequest_RequestTrailers:
			end, trailers = true, true
		default:
			err = errOrder
		}
		if err != nil {
			return err
		}
	}
	choice, err := c.pick()
	if err != nil {
		return err
	}
	length := 0
	for _, p := range choice.Body {
		length += len(p)
	}
	if err := c.stream.Send(picked(choice, length)); err != nil {
		return err
	}
	if err := sendBody(choice.Body, !trailers, func(r *extprocv3.BodyResponse) error {
		return c.stream.Send(&extprocv3.ProcessingResponse{
			Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: r}})
	}); err != nil || !trailers {
		return err
	}
	return c.trailers()
}

func (c *conversation) trailers() error {
	return c.stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: &extprocv3.TrailersResponse{}}})
}

// answer follows the response of the model server. The response is complete when its end was received, or when the
// gateway closes the stream after its headers.
func (c *conversation) answer() (complete bool, err error) {
	for ended := false; ; {
		m, err := c.next(false)
		if errors.Is(err, io.EOF) {
			return c.began, nil
		}
		if err != nil {
			return false, err
		}
		out := &extprocv3.ProcessingResponse{}
		switch v := m.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			if c.began {
				return false, errOrder
			}
			c.began, ended = true, v.ResponseHeaders.GetEndOfStream()
			h := v.ResponseHeaders.GetHeaders()
			code := 0
			for _, p := range h.GetHeaders() {
				if p.GetKey() == ":status" {
					code, _ = strconv.Atoi(valueOf(p)) // 0: not known
				}
			}
			set := c.request.Answered(code, servedBy(m.GetMetadataContext()))
			out.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: changed(set)}
			err = c.stream.Send(out)
		case *extprocv3.ProcessingRequest_ResponseBody:
			if !c.began || ended {
				return false, errOrder
			}
			part := v.ResponseBody.GetBody()
			ended = v.ResponseBody.GetEndOfStream()
			c.request.AnswerPart(part)
			err = sendBody([][]byte{part}, ended, func(r *extprocv3.BodyResponse) error {
				return c.stream.Send(&extprocv3.ProcessingResponse{
					Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: r}})
			})
		case *extprocv3.ProcessingRequest_ResponseTrailers:
			if !c.began || ended {
				return false, errOrder
			}
			ended = true
			out.Response = &extprocv3.ProcessingResponse_ResponseTrailers{
				ResponseTrailers: &extprocv3.TrailersResponse{}}
			err = c.stream.Send(out)
		default:
			return false, errOrder
		}
		if err != nil || ended {
			return ended, err
		}
	}
}

// sendBody sends a body in messages of a size that gateways accept; the last one marks the end.
func sendBody(parts [][]byte, end bool, send func(*extprocv3.BodyResponse) error) error {
	var all [][]byte
	for _, p := range parts {
		all = slices.AppendSeq(all, slices.Chunk(p, chunk))
	}
	if len(all) == 0 {
		all = [][]byte{nil}
	}
	for i, p := range all {
		if err := send(&extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
			BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
				StreamedResponse: &extprocv3.StreamedBodyResponse{Body: p,
					EndOfStream: end && i == len(all)-1}}}}}); err != nil {
			return err
		}
	}
	return nil
}

// picked is the response to the headers. length is that of the body; below 0: unchanged.
func picked(c *Choice, length int) *extprocv3.ProcessingResponse {
	var list []string
	for _, at := range c.Endpoints {
		list = append(list, at.String())
	}
	to := strings.Join(list, ",")
	set, remove := []*corev3.HeaderValueOption{option(Destination, to)}, []string{}
	if length >= 0 {
		set = append(set, option("content-length", strconv.Itoa(length)))
	}
	for name, v := range c.Headers {
		set = append(set, option(strings.ToLower(name), v))
	}
	for _, name := range PickersHeaders() { // the client's
		name = strings.ToLower(name)
		if _, own := c.Headers[name]; !own && name != Destination {
			remove = append(remove, name)
		}
	}
	return &extprocv3.ProcessingResponse{
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{namespace: structpb.NewStructValue(
			&structpb.Struct{Fields: map[string]*structpb.Value{Destination: structpb.NewStringValue(to)}})}},
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{ClearRouteCache: true,
				HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: set, RemoveHeaders: remove}}}}}
}

// changed is the response to the headers of a response, with those to set.
func changed(set map[string]string) *extprocv3.HeadersResponse {
	if len(set) == 0 {
		return &extprocv3.HeadersResponse{}
	}
	var all []*corev3.HeaderValueOption
	for name, v := range set {
		all = append(all, option(strings.ToLower(name), v))
	}
	return &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{
		HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: all}}}
}

func option(name, v string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: pair(name, v),
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}
}

func (r *Refused) message() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{Status: &typev3.HttpStatus{Code: typev3.StatusCode(r.Status)},
			Headers: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{option(r.Name, r.Reason)}},
			Body:    []byte(r.Text)}}}
}

func valueOf(p *corev3.HeaderValue) string {
	if raw := p.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return p.GetValue()
}

func httpHeaders(m *corev3.HeaderMap) http.Header {
	h := http.Header{}
	for _, p := range m.GetHeaders() {
		h.Add(p.GetKey(), valueOf(p))
	}
	return h
}

// servedBy reads which endpoint has responded; not valid: the gateway does not report it.
func servedBy(m *corev3.Metadata) netip.AddrPort {
	at, err := netip.ParseAddrPort(m.GetFilterMetadata()[namespace].GetFields()[Served].GetStringValue())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// Where a gateway names the endpoints to choose from.
const (
	subsetHint = "envoy.lb.subset_hint"
	subsetKey  = "x-gateway-destination-endpoint-subset"
)

// mostSubset limits the subset of endpoints that a gateway may send.
const mostSubset = 1024

// subsetOf reads the endpoints to which a gateway restricts the choice (2.1); nil: no restriction.
func subsetOf(m *corev3.Metadata) []netip.AddrPort {
	v := m.GetFilterMetadata()[subsetHint].GetFields()[subsetKey]
	if v == nil {
		return nil
	}
	list := strings.Split(v.GetStringValue(), ",")
	for _, e := range v.GetListValue().GetValues() {
		list = append(list, e.GetStringValue())
	}
	out := []netip.AddrPort{}
	for _, text := range list[:min(len(list), mostSubset)] {
		text = strings.TrimSpace(text)
		at, err := netip.ParseAddrPort(text)
		if err != nil {
			ip, bad := netip.ParseAddr(text)
			if bad != nil {
				continue
			}
			at = netip.AddrPortFrom(ip, 0)
		}
		out = append(out, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
	}
	return out
}
