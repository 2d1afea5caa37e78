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
	"sync/atomic"
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

// PickersHeaders returns the headers that only pickers may set: the endpoints of a request, and those that its server
// then connects to. Otherwise a client could choose where a server sends its prompts, or gets parts of answers from.
func PickersHeaders() []string {
	return []string{"X-Gateway-Destination-Endpoint", "X-Prefiller-Host-Port", "X-Encoder-Hosts-Ports",
		"X-Kv-Cache-Source-Host-Port", "X-Data-Parallel-Host-Port"}
}

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
	reserve  func(n int64) bool
	probes   probes
	closing  chan struct{} // closed by Close

	mu     sync.Mutex
	users  int
	closed bool
}

// New makes a client. dial connects to any server of the picker; secure is nil for a connection without TLS. reserve
// takes memory for bodies of requests that the picker sends back; less than 0 gives it back, which never fails. nil:
// there is no limit for all of them.
func New(dial func(context.Context) (net.Conn, error), secure *tls.Config, reserve func(n int64) bool) (
	*Client, error,
) {
	creds := insecure.NewCredentials()
	if secure != nil {
		creds = credentials.NewTLS(secure)
	}
	conn, err := grpc.NewClient("passthrough:///endpoint-picker", grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(ending(unacknowledgedTime, dial)),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), reconnects())
	if err != nil {
		return nil, fmt.Errorf("make a client for an endpoint picker: %w", err)
	}
	return newClient(conn, reserve), nil
}

func newClient(conn *grpc.ClientConn, reserve func(n int64) bool) *Client {
	c := &Client{conn: conn, patience: patience, reserve: reserve, closing: make(chan struct{})}
	c.probes.quiet, c.probes.limit, c.probes.check = quietTime, probeTime, c.health
	return c
}

// Begin notes a user of the client: a request whose stream goes on after a Close. false: it is closed already.
func (c *Client) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users++
	return !c.closed
}

// End notes that a user of the client has ended.
func (c *Client) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users--; c.users == 0 && c.closed {
		_ = c.conn.Close()
	}
}

// Close ends the connections when their last user has ended: responses go on through a picker that has been replaced.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		close(c.closing)
	}
	if c.closed = true; c.users == 0 {
		_ = c.conn.Close()
	}
}

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
	held   atomic.Int64 // bytes of Picked.Body
}

// Close ends the stream: the request is over.
func (s *Stream) Close() {
	s.cancel()
	s.sent()
}

// sent records that Picked.Body is not used any more.
func (s *Stream) sent() { s.client.release(s.held.Swap(0)) }

func (c *Client) release(n int64) {
	if n > 0 && c.reserve != nil {
		c.reserve(-n)
	}
}

// Pick requests the endpoints of a request. body is the whole body; nil: there is none. among are the only endpoints to
// choose from; none: all of the pool.
func (c *Client) Pick(ctx context.Context, r *http.Request, body []byte, among []netip.AddrPort) (*Stream, *Picked,
	error) {
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives the pick
	stop := context.AfterFunc(ctx, cancel)
	responds := c.probes.watch(ctx, cancel)
	stream, err := extprocv3.NewExternalProcessorClient(c.conn).Process(streaming)
	if err != nil {
		cancel()
		if !responds() {
			err = errHangs
		}
		return nil, nil, fmt.Errorf("call the endpoint picker: %w", err)
	}
	var sending sync.WaitGroup
	sending.Go(func() { send(stream, r, body, hint(among)) })
	p := picking{client: c, stream: stream, left: chunks(body), sent: body,
		out: &Picked{Headers: Change{Set: http.Header{}}}}
	err = p.receive()
	if err != nil || p.out.Answer != nil {
		cancel()
	}
	sending.Wait()
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if !responds() {
		err = errHangs // also if it has decided at the same moment: the stream is cancelled
	}
	if err != nil {
		c.release(p.held)
		return nil, nil, fmt.Errorf("call the endpoint picker: %w", err)
	}
	s := &Stream{client: c, stream: stream, cancel: cancel, mode: p.out.mode}
	s.held.Store(p.held)
	return s, p.out, nil
}

// hint restricts the choice of the picker (2.1); nil: it does not.
func hint(among []netip.AddrPort) *corev3.Metadata {
	if len(among) == 0 {
		return nil
	}
	list := &structpb.ListValue{}
	for _, at := range among[:min(len(among), mostSubset)] {
		list.Values = append(list.Values, structpb.NewStringValue(at.String()))
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		subsetHint: {Fields: map[string]*structpb.Value{subsetKey: structpb.NewListValue(list)}}}}
}

// send sends the request's headers and body. The receiver gets its errors.
func send(stream extprocv3.ExternalProcessor_ProcessClient, r *http.Request, body []byte, hint *corev3.Metadata) {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	headers := []*corev3.HeaderValue{pair(":method", r.Method), pair(":path", r.URL.RequestURI()),
		pair(":authority", r.Host), pair(":scheme", scheme)}
	err := stream.Send(&extprocv3.ProcessingRequest{MetadataContext: hint,
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

var (
	errTooMuch  = errors.New("the picker's body is too large")
	errNoMemory = errors.New("the bodies of all pickers are too large")
	errHeaders  = errors.New("the picker changes too many headers")
)

// picking is the first part of a stream, until the picker has decided.
type picking struct {
	client  *Client
	stream  extprocv3.ExternalProcessor_ProcessClient
	out     *Picked
	headers bool // it has answered the headers
	sent    []byte
	left    int   // messages of the body that it has not answered
	at      int   // bytes of sent that it has answered, one message after the other
	changes int   // bytes of changed headers
	held    int64 // reserved bytes of out.Body
	ignored int   // messages without an effect
}

// receive reads until the responses to the headers and the whole body have arrived. Those to the body may arrive first
// (2.1).
func (p *picking) receive() error {
	for !p.headers || p.left > 0 {
		m, err := p.stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if at := destination(m.GetDynamicMetadata()); at != nil {
			p.out.Endpoints = at
		}
		if v := m.GetModeOverride(); v != nil {
			p.out.mode = v
		}
		useful, changes := false, p.changes
		switch v := m.GetResponse().(type) {
		case *extprocv3.ProcessingResponse_ImmediateResponse:
			p.out.Answer, err = immediate(v.ImmediateResponse)
			return err
		case *extprocv3.ProcessingResponse_RequestHeaders:
			useful, p.headers = !p.headers, true
			err = p.change(v.RequestHeaders.GetResponse().GetHeaderMutation())
		case *extprocv3.ProcessingResponse_RequestBody:
			common := v.RequestBody.GetResponse()
			useful = hasBody(common.GetBodyMutation())
			if err = p.change(common.GetHeaderMutation()); err == nil {
				err = p.body(common.GetBodyMutation())
			}
		}
		if err != nil {
			return err
		}
		if !useful && p.changes == changes {
			p.ignored++
		}
		if p.ignored > mostIgnored+chunks(p.sent) { // a picker may answer each message with nothing at first
			return errUseless
		}
	}
	return nil
}

// hasBody reports whether a change of a part of a body brings the end of the body nearer.
func hasBody(m *extprocv3.BodyMutation) bool {
	b := m.GetStreamedResponse()
	return b == nil || len(b.GetBody()) > 0 || b.GetEndOfStream()
}

// body takes what the picker has made of a part of the body.
func (p *picking) body(m *extprocv3.BodyMutation) error {
	p.left--
	switch b := m.GetMutation().(type) {
	case *extprocv3.BodyMutation_StreamedResponse:
		if p.left = 1; b.StreamedResponse.GetEndOfStream() {
			p.left = 0
		}
		if p.out.Body == nil {
			p.out.Body = []byte{}
		}
		return p.add(b.StreamedResponse.GetBody())
	default: // an answer to one message, which stays as it is, or is another
		before := p.sent[:p.at]
		part := p.sent[p.at:][:min(chunk, len(p.sent)-p.at)]
		if p.at += len(part); m.GetMutation() != nil {
			part = m.GetBody()
		} else if p.out.Body == nil {
			return nil
		}
		if p.out.Body == nil {
			p.out.Body = []byte{}
			if err := p.add(before); err != nil {
				return err
			}
		}
		return p.add(part)
	}
}

// add adds to the body that the model server gets.
func (p *picking) add(part []byte) error {
	if len(p.out.Body)+len(part) > mostBody {
		return errTooMuch
	}
	if n := int64(len(part)); p.client.reserve != nil && n > 0 {
		if !p.client.reserve(n) {
			return errNoMemory
		}
		p.held += n
	}
	p.out.Body = append(p.out.Body, part...)
	return nil
}

// change records changes of headers, and the endpoints of the request if they are set. A picker may send changes with
// every message: all of them together are limited.
func (p *picking) change(m *extprocv3.HeaderMutation) error {
	if m == nil {
		return nil
	}
	c, size, err := change(m)
	if p.changes += size; err != nil || p.changes > mostHeaders {
		return errHeaders
	}
	for name, v := range c.Set {
		p.out.Headers.Set[name] = v
		if strings.EqualFold(name, Destination) && p.out.Endpoints == nil {
			p.out.Endpoints = endpoints(v[len(v)-1])
		}
	}
	p.out.Headers.Remove = append(p.out.Headers.Remove, c.Remove...)
	return nil
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
		"Proxy-Connection", "Expect":
		return true
	}
	return false
}

// change reads a change of headers, and returns how large it is. To set means to replace, also if the picker does not
// specify it.
func change(m *extprocv3.HeaderMutation) (c *Change, size int, err error) {
	c = &Change{Set: http.Header{}}
	for _, o := range m.GetSetHeaders() {
		name, v := o.GetHeader().GetKey(), o.GetHeader().GetValue()
		if raw := o.GetHeader().GetRawValue(); len(raw) > 0 {
			v = string(raw)
		}
		if size += len(name) + len(v); size > mostHeaders {
			return nil, size, errHeaders
		}
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(v) {
			continue // also those that begin with a colon
		}
		if name = http.CanonicalHeaderKey(name); !owned(name) {
			c.Set[name] = append(c.Set[name], v)
		}
	}
	for _, name := range m.GetRemoveHeaders() {
		if size += len(name); size > mostHeaders {
			return nil, size, errHeaders
		}
		if name = http.CanonicalHeaderKey(name); !owned(name) {
			c.Remove = append(c.Remove, name)
		}
	}
	return c, size, nil
}

// immediate reads a response of the picker itself. A status that is no final one, or none at all, becomes 500. Those
// without a body get none.
func immediate(m *extprocv3.ImmediateResponse) (*Answer, error) {
	c, _, err := change(m.GetHeaders())
	if err != nil {
		return nil, err
	}
	a := &Answer{Status: int(m.GetStatus().GetCode()), Headers: *c, Body: m.GetBody()}
	switch {
	case a.Status < 200 || a.Status > 599:
		a.Status = http.StatusInternalServerError
	case a.Status == http.StatusNoContent || a.Status == http.StatusNotModified:
		a.Body = nil
	}
	return a, nil
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
