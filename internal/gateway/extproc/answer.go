package extproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Limits of an answer on its way through a picker.
const (
	patience   = 10 * time.Second // for what the picker has to give back
	mostHeld   = 10 << 20         // bytes that it has not given back, of one answer
	mostDirect = 256 << 10        // bytes that are read ahead of the client without a picker
	firstRead  = 4 << 10          // bytes of a read; a full one is followed by one of a message's size

	mostIgnored = 16 // messages without an effect
)

var errUseless = errors.New("the picker sends messages without a request for them")

// ErrPicker is why an answer is not passed on: the picker failed, and its failure mode is FailClose.
var ErrPicker = errors.New("the endpoint picker failed during the answer")

// Following is how an answer is shown to the picker.
type Following struct {
	Served netip.AddrPort // who answers
	// FailOpen: an answer goes on without a picker that has failed.
	FailOpen bool
	// Reserve takes memory for what the picker has not given back; less than 0 gives it back, which never fails.
	Reserve func(n int64) bool
	// Cancel ends the reads of the answer's body.
	Cancel context.CancelFunc
}

// Answered sends the response to the picker and applies the picker's changes: to its header, and, while it is read, to
// its body. The client gets what the picker returns. A picker that has ended the stream without an error is not called
// again. Errors are ErrPicker.
//
// The picker learns of the end of the body with its last part: trailers go to the client as they are, because pickers
// ignore them (2.1). No other server gets the request: the memory of its changed body is given back.
func (s *Stream) Answered(ctx context.Context, res *http.Response, f Following) error {
	s.sent()
	if s.mode != nil && s.mode.GetResponseHeaderMode() == filterv3.ProcessingMode_SKIP {
		return nil
	}
	p := &passing{stream: s, of: f, body: res.Body, unlike: !streams(res.Header)}
	p.changes.L = &p.mu
	p.forget = context.AfterFunc(ctx, s.cancel) // the client has gone
	end := empty(res)
	if err := s.sendHead(res, f.Served, end); err == nil && !end && s.getsBodies() {
		p.sender.Go(p.send)
		res.Body, p.begun = p, true
		res.ContentLength = -1 // the picker may change it
		res.Header.Del("Content-Length")
	}
	for p.head == nil && p.answer == nil && !p.direct && p.err == nil {
		p.next()
	}
	switch {
	case p.err != nil && !errors.Is(p.err, io.EOF):
		p.end()
		return p.err
	case p.answer != nil:
		p.end()
		replace(res, p.answer)
	case p.head != nil:
		p.head.Apply(res.Header)
	}
	if !p.begun {
		p.forget()
		p.spend(p.early) // the body does not come from the picker
	}
	return nil
}

// streams reports whether an answer comes in parts, each of which the client waits for.
func streams(h http.Header) bool {
	return strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
}

// empty reports whether an answer has no body, or is no answer: a connection that changes its protocol.
func empty(res *http.Response) bool {
	return res.ContentLength == 0 || res.StatusCode == http.StatusSwitchingProtocols ||
		res.Request != nil && res.Request.Method == http.MethodHead
}

// replace makes the picker's answer the one that the client gets.
func replace(res *http.Response, a *Answer) {
	res.StatusCode, res.Header, res.Trailer = a.Status, http.Header{}, nil
	a.Headers.Apply(res.Header)
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(a.Body)), int64(len(a.Body))
	if a.Status != http.StatusNoContent && a.Status != http.StatusNotModified {
		res.Header.Set("Content-Length", fmt.Sprint(len(a.Body)))
	}
}

func (s *Stream) getsBodies() bool {
	return s.mode == nil || s.mode.GetResponseBodyMode() != filterv3.ProcessingMode_NONE
}

// sendHead sends the head of an answer and who gave it.
func (s *Stream) sendHead(res *http.Response, by netip.AddrPort, end bool) error {
	served, err := structpb.NewStruct(map[string]any{Served: by.String()})
	if err != nil {
		return err
	}
	headers := append([]*corev3.HeaderValue{pair(":status", fmt.Sprint(res.StatusCode))}, pairs(res.Header)...)
	return s.stream.Send(&extprocv3.ProcessingRequest{
		MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: served}},
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: headers}, EndOfStream: end}}})
}

// part is a part of a body that the picker has.
type part struct {
	data []byte
	last bool
}

// passing is the body of an answer on its way through the picker. It implements io.ReadCloser: one goroutine reads,
// another one (send) reads the server's body and sends it to the picker.
type passing struct {
	stream *Stream
	of     Following
	body   io.ReadCloser
	unlike bool // the body is no stream of events: pickers may keep it until its end
	begun  bool
	forget func() bool
	sender sync.WaitGroup

	// Of the reader. It changes head under the lock.
	head   *Change
	answer *Answer
	ready  [][]byte
	early  int64 // reserved bytes of ready: those that came before the head
	err    error // after ready; io.EOF: the end

	mu         sync.Mutex
	changes    sync.Cond   // of the following
	sent       []part      // that the picker has not given back; in direct mode, what the client gets next
	held       int64       // bytes of sent
	reserved   int64       // of held
	unanswered int         // messages since the picker's last one
	ignored    int         // messages of the picker without an effect, since the last part
	changed    bool        // the picker has changed the body: the response can't continue without it
	opaque     bool        // and sent has no meaning any more
	direct     bool        // without the picker
	ended      bool        // the server's body
	broken     error       // why it ended too early
	over       bool        // closed
	waiting    *time.Timer // while the reader waits for the picker
}

// Read implements io.Reader.
func (p *passing) Read(b []byte) (int, error) {
	for len(p.ready) == 0 {
		if p.err != nil {
			return 0, p.err
		}
		p.next()
	}
	n := copy(b, p.ready[0])
	p.spend(min(int64(n), p.early))
	if p.ready[0] = p.ready[0][n:]; len(p.ready[0]) == 0 {
		p.ready = p.ready[1:]
	}
	return n, nil
}

// Close implements io.Closer.
func (p *passing) Close() error {
	p.end()
	return nil
}

// end ends the conversation and the reads of the server's body.
func (p *passing) end() {
	p.forget()
	p.mu.Lock()
	done := p.over
	p.over = true
	p.changes.Broadcast()
	p.mu.Unlock()
	if done {
		return
	}
	p.stream.Close()
	p.of.Cancel()
	p.sender.Wait()
	_ = p.body.Close()
	p.spend(p.early)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
}

// spend gives back memory of what came before the head.
func (p *passing) spend(n int64) {
	if n > 0 {
		p.early -= n
		p.of.Reserve(-n)
	}
}

// next waits for what comes next.
func (p *passing) next() {
	if p.direct {
		p.readOn()
		return
	}
	p.wait(true)
	m, err := p.stream.stream.Recv()
	p.wait(false)
	if err == nil {
		err = p.take(m)
	}
	if err != nil {
		p.failed(err)
	}
}

// wait notes whether the reader waits for the picker, which has only so much time for what it has to give back.
func (p *passing) wait(now bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now {
		p.waiting = time.AfterFunc(p.stream.client.patience, p.stream.cancel)
		p.watch(false)
		return
	}
	p.waiting.Stop()
	p.waiting, p.unanswered = nil, 0
}

// watch starts or stops the picker's time. The lock is held. again: something was sent just now.
func (p *passing) watch(again bool) {
	if p.waiting == nil {
		return
	}
	pending := p.head == nil || len(p.sent) > 0 || p.opaque && (p.unanswered > 0 || p.ended)
	switch {
	case !pending:
		p.waiting.Stop()
	case again && (p.unlike || p.unanswered == 1):
		p.waiting.Reset(p.stream.client.patience)
	}
}

// take takes a message of the picker.
func (p *passing) take(m *extprocv3.ProcessingResponse) error {
	switch v := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.head != nil {
			return p.useless()
		}
		c, _, err := change(v.ResponseHeaders.GetResponse().GetHeaderMutation())
		if err != nil {
			return err
		}
		p.head = c
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		if p.head != nil {
			return ErrPicker // the client has the head of the answer
		}
		answer, err := immediate(v.ImmediateResponse)
		if err != nil {
			return err
		}
		p.answer = answer
	case *extprocv3.ProcessingResponse_ResponseBody:
		p.mu.Lock()
		defer p.mu.Unlock()
		m := v.ResponseBody.GetResponse().GetBodyMutation()
		if !hasBody(m) {
			return p.useless()
		}
		before := len(p.ready)
		if p.takeBody(m); p.head != nil || len(p.ready) == before {
			return nil // the reader takes it before the next one
		}
		n := int64(len(p.ready[before]))
		if p.early+n > mostBody {
			return errTooMuch
		}
		if !p.of.Reserve(n) {
			return errNoMemory
		}
		p.early += n
	default:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.useless()
	}
	return nil
}

// useless counts messages that neither answer anything nor end anything. Each of them would give the picker its time
// again, so only a few are accepted for each part of the body. The lock is held.
func (p *passing) useless() error {
	if p.ignored++; p.ignored > mostIgnored {
		return errUseless
	}
	return nil
}

// takeBody takes a part of the body. The lock is held.
func (p *passing) takeBody(m *extprocv3.BodyMutation) {
	switch b := m.GetMutation().(type) {
	case *extprocv3.BodyMutation_StreamedResponse:
		data := b.StreamedResponse.GetBody()
		p.compare(data)
		p.give(data)
		if b.StreamedResponse.GetEndOfStream() {
			p.err = io.EOF
		}
	default: // an answer to one part, which stays as it is, or is another
		first := p.first()
		if m.GetMutation() != nil {
			p.changed = p.changed || !bytes.Equal(m.GetBody(), first.data)
			first.data = m.GetBody()
		}
		p.give(first.data)
		if first.last {
			p.err = io.EOF
		}
	}
}

func (p *passing) give(data []byte) {
	if len(data) > 0 {
		p.ready = append(p.ready, data)
	}
}

// first takes the first part that the picker has.
func (p *passing) first() part {
	if len(p.sent) == 0 {
		return part{}
	}
	first := p.sent[0]
	p.sent = p.sent[1:]
	p.release(int64(len(first.data)))
	return first
}

// compare takes what comes back from what was sent. If it is something else, the answer depends on the picker.
func (p *passing) compare(data []byte) {
	for !p.opaque && len(data) > 0 {
		if len(p.sent) == 0 {
			p.opaque = true
			break
		}
		n := min(len(p.sent[0].data), len(data))
		if !bytes.Equal(p.sent[0].data[:n], data[:n]) {
			p.opaque = true
			break
		}
		data = data[n:]
		p.release(int64(n))
		if p.sent[0].data = p.sent[0].data[n:]; len(p.sent[0].data) == 0 && !p.sent[0].last {
			p.sent = p.sent[1:]
		} else if len(p.sent[0].data) == 0 && len(data) > 0 {
			p.opaque = true // beyond the end
		}
	}
	if p.opaque {
		p.changed = true
		p.drop()
	}
}

// drop discards what was sent.
func (p *passing) drop() {
	p.release(p.held)
	p.sent = nil
}

// hold takes memory for n bytes more. Without a picker the client's pace bounds it.
func (p *passing) hold(n int64) bool {
	switch {
	case p.direct && p.held > mostDirect, !p.direct && p.held+n > mostHeld, !p.direct && !p.of.Reserve(n):
		return false
	case !p.direct:
		p.reserved += n
	}
	p.held += n
	return true
}

func (p *passing) release(n int64) {
	p.held -= n
	back := min(n, p.reserved)
	p.reserved -= back
	p.of.Reserve(-back)
	p.changes.Broadcast()
}

// failed continues without the picker if its failure mode allows it and the client's response is still the server's.
func (p *passing) failed(err error) {
	p.stream.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.changed && p.broken != nil:
		p.err = p.broken
	case !p.changed && (p.broken != nil || p.of.FailOpen || errors.Is(err, io.EOF)):
		p.direct = true
		p.changes.Broadcast()
	default:
		p.err = fmt.Errorf("%w: %w", ErrPicker, err)
	}
}

// readOn waits for the server's body without the picker.
func (p *passing) readOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.sent) == 0 && !p.ended && !p.over {
		p.changes.Wait()
	}
	for len(p.sent) > 0 {
		p.give(p.first().data)
	}
	if !p.ended && !p.over {
		return
	}
	if p.err = p.broken; p.err == nil {
		p.err = io.EOF
	}
	if p.over && !p.ended {
		p.err = io.ErrClosedPipe
	}
}

// send reads the server's body and sends it to the picker, or leaves it to the reader.
func (p *passing) send() {
	buf := make([]byte, firstRead)
	for {
		n, err := p.body.Read(buf)
		last := err != nil
		if last && !errors.Is(err, io.EOF) {
			p.finish(buf[:n], err)
			return
		}
		if n > 0 || last {
			one := part{bytes.Clone(buf[:n]), last}
			if !p.keep(one) {
				return
			}
			if last {
				return
			}
		}
		if n == firstRead && len(buf) == firstRead {
			buf = make([]byte, chunk)
		}
	}
}

// finish notes that the server's body has broken off. The picker cannot know: its stream is ended.
func (p *passing) finish(rest []byte, err error) {
	p.mu.Lock()
	if !p.opaque && p.hold(int64(len(rest))) {
		p.sent = append(p.sent, part{data: bytes.Clone(rest)})
	}
	p.ended, p.broken = true, err
	p.changes.Broadcast()
	p.mu.Unlock()
	p.stream.cancel()
}

// keep keeps a part until it comes back, and sends it. false: the answer is over.
func (p *passing) keep(one part) bool {
	p.mu.Lock()
	n := int64(len(one.data))
	for !p.over && !p.opaque && !p.hold(n) {
		if !p.direct {
			p.stream.cancel() // it keeps too much: the reader goes on without it, or ends
		}
		p.changes.Wait()
	}
	if p.over {
		p.mu.Unlock()
		return false
	}
	if !p.opaque {
		p.sent = append(p.sent, one)
	}
	p.ended = one.last
	p.unanswered++
	p.ignored = 0
	direct := p.direct
	p.watch(true)
	p.changes.Broadcast()
	p.mu.Unlock()
	if direct {
		return true
	}
	// An error is one of the stream, which the reader sees.
	_ = p.stream.stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: one.data, EndOfStream: one.last}}})
	return true
}
