package gateway

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/core/modelbody"
	"carob/internal/core/routing"
	"carob/internal/gateway/bodies"
	"carob/internal/gateway/certs"
	"carob/internal/gateway/extproc"
	"carob/internal/gateway/feed"
	"carob/internal/gateway/proxy"
	"carob/internal/gateway/server"
	"carob/internal/inference"
)

// Limits of inference requests. A body is kept until it is sent: the model may be its last field.
const (
	inferenceBody   = 10 << 20  // bytes; as in upstream's picker
	inferenceBodies = 512 << 20 // bytes of all requests at once
	firstBody       = 8 << 10   // bytes that are reserved at first
)

// Reasons of the gateway itself, in the header routing.ReasonHeader.
const (
	badBody   = "rejected-invalid-body"
	largeBody = "rejected-body-too-large"
	slowBody  = "rejected-body-too-slow"
)

// served is how an InferencePool is served. It is replaced, never changed.
type served struct {
	plan   *gatewayplan.Pool
	own    *inference.Pool // carob's picker; nil: client is used
	config *routing.Config // of own
	client *extproc.Client
	to     *atomic.Pointer[Target] // the endpoint that client has connected to last; nil: none
	bodies *bodies.Budget          // of all pools
}

// serve sets the picker of a pool, and the picker's endpoints. The gateway's lock is held.
func (g *Gateway) serve(ctx context.Context, ref httproute.Ref, p *pool, w *feed.Snapshot, pools poolMap) {
	plan := g.plan.Pools[ref]
	if plan == nil {
		return
	}
	now := &served{plan: plan, bodies: g.bodies}
	before := p.served.Load()
	switch {
	case plan.Picker == nil:
		g.ownPicker(ref, now, before)
		now.own.SetEndpoints(routingEndpoints(*p.endpoints.Load(), ref.Namespace, w.Pods[ref.Namespace]))
	case before != nil && before.client != nil && before.plan.Picker.Same(plan.Picker) &&
		!before.stranded(pools):
		now.client, now.to = before.client, before.to
	default:
		now.to = new(atomic.Pointer[Target])
		client, err := pickerClient(plan.Picker, pools, g.bodies.Reserve, now.to)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot use an external endpoint picker", "pool", ref)
		}
		now.client = client
	}
	p.served.Store(now)
	if before != nil && !ptr.Equal(before.plan.Drain, plan.Drain) {
		g.traffic.redrain(p)
	}
	before.close(now)
}

// ownPicker sets carob's picker for a pool, the existing one if there is one. An invalid configuration changes nothing.
func (g *Gateway) ownPicker(ref httproute.Ref, now, before *served) {
	config := now.plan.Config
	if before != nil && before.own != nil {
		if now.own, now.config = before.own, before.config; now.plan.Broken {
			return
		}
		if now.config = config; config == before.config {
			return
		}
		if config == nil {
			config = routing.DefaultConfig()
		}
		now.own.Configure(config)
		return
	}
	if now.config = config; config == nil {
		config = routing.DefaultConfig()
	}
	now.own = inference.New(types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, config, nil)
}

// use returns how the pool is served now; nil: by no picker. The picker stays connected until used is called.
func (p *pool) use() *served {
	for {
		s := p.served.Load()
		if s == nil || s.client == nil || s.client.Begin() || s == p.served.Load() {
			return s
		}
		s.client.End() // it has just been replaced
	}
}

func (s *served) used() {
	if s.client != nil {
		s.client.End()
	}
}

// close ends the parts that the next one does not use. Requests that carob's picker holds get the next one (move).
func (s *served) close(next *served) {
	if s == nil {
		return
	}
	if s.own != nil && (next == nil || next.own != s.own) {
		if next != nil {
			s.own.Replaced()
		}
		go s.own.Close() // it waits for its scrapers
	}
	if s.client != nil && (next == nil || next.client != s.client) {
		s.client.Close()
	}
}

// stranded reports whether the client is connected to an endpoint that its Service has no more, although it has others.
// The picker there may run, but not be the leader any more.
func (s *served) stranded(pools poolMap) bool {
	of, _ := pools.Get(s.plan.Picker.Service)
	to := s.to.Load()
	return of != nil && to != nil && of.lost(to)
}

// lost reports whether a pool has other endpoints than this one.
func (p *pool) lost(t *Target) bool {
	all := *p.endpoints.Load()
	return len(all) > 0 && !slices.Contains(all, t)
}

// reviewPickers gives the pools whose picker's endpoints have changed another client if need be. The lock is held.
func (g *Gateway) reviewPickers(ctx context.Context, changes *feed.Snapshot) {
	for ref, plan := range g.plan.Pools { // any order: each by itself
		if plan.Picker != nil && changes.Changed[serviceOf(plan.Picker.Service)] {
			if p, known := g.pools.Get(ref); known {
				g.serve(ctx, ref, p, changes, g.pools)
			}
		}
	}
}

// pickerClient connects directly to the endpoints of a picker's Service.
func pickerClient(p *gatewayplan.PoolPicker, pools poolMap, reserve func(int64) bool,
	to *atomic.Pointer[Target]) (*extproc.Client, error) {
	of, _ := pools.Get(p.Service)
	if of == nil {
		return nil, errNoEndpoints
	}
	secure, err := certs.Picker(p)
	if err != nil {
		return nil, err
	}
	return extproc.New(func(ctx context.Context) (net.Conn, error) {
		targets, err := of.pick.Pick(ctx, &Facts{}, *of.endpoints.Load())
		if err != nil {
			return nil, err
		}
		err = errNoEndpoints
		for _, t := range targets {
			var c net.Conn
			if c, err = dial(ctx, "tcp", t.Address.String()); err != nil {
				continue
			}
			if to.Store(t); !of.lost(t) { // after it was stored: a later change finds it
				return c, nil
			}
			_ = c.Close()
			err = errNoEndpoints
		}
		return nil, err
	}, secure, reserve)
}

// infer serves a request of an InferencePool.
func (x *exchange) infer(ctx context.Context, w http.ResponseWriter, s *served) {
	for _, name := range extproc.PickersHeaders() {
		delete(x.in.Header, name)
	}
	q := &inferring{exchange: x, served: s}
	defer func() { q.served.used() }() // of the last one, if the pool gets others
	defer q.prompt.Release()
	if status, reason, err := q.readBody(w); err != nil {
		q.refuse(w, status, reason, err.Error())
		return
	}
	if q.kept {
		x.began = proxy.Begin // an error is that of a server that has failed before: the client has no answer yet
	}
	if !q.pick(ctx, w) {
		return
	}
	defer q.end()
	proxy.Serve(ctx, w, x.in, q)
}

// refuse responds to a request that gets no endpoint.
func (q *inferring) refuse(w http.ResponseWriter, status int, reason, text string) {
	if q.rec != nil {
		q.rec.inferred.Model, q.rec.inferred.Reason = q.scan.Facts.Model, reason
		q.rec.span.Refused(reason)
	}
	w.Header().Set(routing.ReasonHeader, reason)
	if proxy.IsGRPC(q.in) {
		refuse(w, q.in, status)
		return
	}
	http.Error(w, text, status)
}

// inferring is one inference request.
type inferring struct {
	*exchange
	served *served

	prompt  bodies.Body // until a server has answered
	kept    bool        // the body was read; otherwise there is none, or it is passed through
	scanned bool        // for carob's picker
	moved   bool        // it had another picker before, which has not decided
	parts   [3][]byte
	choice  *inference.Pick
	stream  *extproc.Stream
	changes extproc.Change // of the request, set by the picker

	status int
	usage  modelbody.Answer
	first  bool
	tokens tokens
	scan   modelbody.Scanner
	// complete: the server has sent its whole answer.
	complete bool
	over     sync.Once
}

var (
	errTooLarge = errors.New("the body is too large for an inference request")
	errTooSlow  = errors.New("the body arrives too slowly")
	errNoModel  = errors.New("the body names no model")
)

// readBody reads the body, up to a limit, and the facts in it.
func (q *inferring) readBody(w http.ResponseWriter) (status int, reason string, err error) {
	in := q.in
	if in.Body == nil || in.Body == http.NoBody || inference.Passes(in.Header) {
		return 0, "", nil
	}
	if in.ContentLength > inferenceBody {
		return http.StatusRequestEntityTooLarge, largeBody, errTooLarge
	}
	if e := in.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return http.StatusUnsupportedMediaType, badBody, errors.New("the body of an inference request is compressed")
	}
	scan := &q.scan
	q.kept = true
	upload := q.served.bodies.Arrive(server.Whole(w))
	defer func() { upload.Done(err == nil) }()
	q.prompt.Reserve = upload.Reserve
	for {
		if len(q.prompt.Free()) == 0 && !q.grow() {
			if !upload.Arrived(0) {
				return http.StatusRequestTimeout, slowBody, errTooSlow
			}
			return http.StatusTooManyRequests, string(routing.Saturated), errors.New("too many large requests at once")
		}
		n, err := in.Body.Read(q.prompt.Free())
		q.prompt.Add(n)
		text := q.prompt.Bytes()
		if len(text) > inferenceBody {
			return http.StatusRequestEntityTooLarge, largeBody, errTooLarge
		}
		if q.served.own != nil {
			if bad := scan.Scan(text); bad != nil {
				return http.StatusBadRequest, badBody, bad
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if !upload.Arrived(n) || errors.Is(err, os.ErrDeadlineExceeded) {
			return http.StatusRequestTimeout, slowBody, errTooSlow
		}
		if err != nil {
			if large, ok := errors.AsType[*http.MaxBytesError](err); ok && large != nil {
				return http.StatusRequestEntityTooLarge, largeBody, errTooLarge
			}
			return http.StatusBadRequest, badBody, errors.New("the body ended too early")
		}
	}
	if err := q.facts(); err != nil {
		return http.StatusBadRequest, badBody, err
	}
	return 0, "", nil
}

// grow enlarges the memory of the body: little at first, because a client may announce more than it sends.
func (q *inferring) grow() bool {
	size, n := int64(firstBody), q.in.ContentLength
	if have := int64(len(q.prompt.Bytes())); have > 0 {
		if size = 4 * have; n > have {
			size = min(size, n+1)
		}
		size = min(size, inferenceBody+1)
	} else if n >= 0 && n < size {
		size = n + 1
	}
	return q.prompt.Grow(size)
}

// picked records the choice in the span of the request.
func (q *inferring) picked() {
	if q.rec == nil || !q.rec.span.Recording() {
		return
	}
	var endpoints []netip.AddrPort
	for _, t := range q.targets {
		endpoints = append(endpoints, t.Address)
	}
	q.rec.span.Picked(q.scan.Facts.Model, endpoints)
}

// pick calls the picker, and responds to the request if it gets no endpoint. If the pool gets another picker meanwhile,
// and this one does not decide any more, the other one is called.
func (q *inferring) pick(ctx context.Context, w http.ResponseWriter) bool {
	q.parts[0] = q.prompt.Bytes()
	answer, err := q.callOne(ctx)
	for err != nil && ctx.Err() == nil && q.move(err) {
		if bad := q.facts(); bad != nil {
			q.refuse(w, http.StatusBadRequest, badBody, bad.Error())
			return false
		}
		answer, err = q.callOne(ctx)
	}
	if answer != nil {
		answer.Headers.Apply(w.Header())
		if q.rec != nil {
			q.rec.inferred.Reason = w.Header().Get(routing.ReasonHeader)
		}
		if proxy.IsGRPC(q.in) {
			refuse(w, q.in, answer.Status)
			return false
		}
		w.WriteHeader(answer.Status)
		_, _ = w.Write(answer.Body)
		return false
	}
	if err == nil && len(q.targets) == 0 {
		err = errNoEndpoints
	}
	if err == nil {
		q.picked()
		return true
	}
	q.end()
	if refused, ok := errors.AsType[*inference.Refused](err); ok {
		q.refuse(w, refused.Status(), string(refused.Reason), http.StatusText(refused.Status()))
		return false
	}
	status := http.StatusServiceUnavailable
	if errors.Is(ctx.Err(), context.DeadlineExceeded) { // of the route
		status = http.StatusGatewayTimeout
	}
	q.refuse(w, status, string(routing.NoEndpoints), http.StatusText(status))
	return false
}

// pickOwn calls carob's picker.
func (q *inferring) pickOwn(ctx context.Context) error {
	text := q.prompt.Bytes()
	r := q.served.request(q.in.Header, &q.scan.Facts, text)
	if q.scan.Facts.HasModel && r.Target != q.scan.Facts.Model {
		q.parts[0], q.parts[1], q.parts[2] = q.scan.Facts.Rewritten(text, r.Target)
	}
	q.served.own.Tokens(ctx, r, &inference.Prompt{Path: q.in.URL.Path, Body: text, Salt: q.scan.Facts.Salt})
	if q.rec != nil {
		if q.rec.inferred.Model = r.Model; r.Target != r.Model {
			q.rec.inferred.Target = r.Target
		}
	}
	choice, err := q.served.own.Pick(ctx, r)
	if err != nil {
		return err
	}
	q.choice = choice
	if q.targets = q.known(choice.Endpoints()); len(q.targets) == 0 {
		return q.choose(ctx) // all were removed since they were picked: the pool may have others now
	}
	if choice.Prefill.IsValid() {
		q.changes.Set = http.Header{"X-Prefiller-Host-Port": {choice.Prefill.String()}}
	}
	return nil
}

// request is the input of carob's picker.
func (s *served) request(h http.Header, facts *modelbody.Facts, body []byte) *routing.Request {
	to := s.plan.Models.Resolve(facts.Model, inference.Objective(h), rand.Uint64())
	return s.own.Request(h, facts, body, to.Target, to.Priority)
}

// Rewrite makes the request that the model server gets.
func (q *inferring) Rewrite(pr *httputil.ProxyRequest) {
	if q.kept {
		pr.Out.Body = nil // it is sent directly from memory
	}
	q.change(pr)
	q.changes.Apply(pr.Out.Header)
	for _, name := range extproc.PickersHeaders() {
		delete(pr.Out.Trailer, name)
	}
	if q.kept {
		q.replaceBody(pr.Out)
	}
	q.copies(pr.Out)
}

// replaceBody gives a request the body from memory.
func (q *inferring) replaceBody(out *http.Request) {
	length := 0
	for _, p := range q.parts {
		length += len(p)
	}
	out.ContentLength = int64(length)
	out.TransferEncoding = nil
	out.Header.Del("Content-Length")
	out.Header.Del("Expect") // the client was sent 100 Continue
	out.GetBody = func() (io.ReadCloser, error) { return q.content(), nil }
	out.Body = q.content()
}

// content is a reader of the body from its beginning.
func (q *inferring) content() io.ReadCloser {
	if r := q.prompt.Reader(q.parts[:]...); r != nil {
		return r
	}
	return http.NoBody
}

// RoundTrip tries the endpoints in the picker's order. A request that a server may have received is sent to another one
// once, and never after the first byte of a response's body: a server that streams sends the header long before the
// first token.
func (q *inferring) RoundTrip(out *http.Request) (*http.Response, error) {
	m := mode{protocol: q.backend.Protocol}
	m.upgrade = strings.EqualFold(out.Header.Get("Connection"), "Upgrade")
	choice := q.choice
	for range attempts {
		res, begun, err := q.try(out, m, choice)
		if err == nil || begun {
			return res, err
		}
		// All were removed since they were picked: the pool may have others now.
		choice = nil
		if again := q.choose(out.Context()); again != nil {
			return nil, again
		}
	}
	return nil, errNoEndpoints
}

// try tries the endpoints once. begun: one of them was there. choice is nil if another picker has chosen them.
func (q *inferring) try(out *http.Request, m mode, choice *inference.Pick) (res *http.Response, begun bool, err error) {
	again := false
	err = errNoEndpoints
	for i := 0; i < len(q.targets); i++ {
		t := q.targets[i]
		if begun && q.kept {
			out.Body = q.content()
		}
		sent := false
		if t.begin() {
			begun = true
			if res, err = q.followed(out, t, m); err == nil {
				q.answered(res)
				return res, true, nil
			}
			if errors.Is(err, extproc.ErrPicker) {
				return nil, true, err
			}
			t.end()
			sent = !isDial(err)
		}
		if out.Context().Err() != nil || q.body.Spent() || sent && again {
			return nil, true, err
		}
		again = again || sent
		if choice == nil {
			continue
		}
		next, ok := choice.Failed(sent)
		if !ok {
			return nil, begun, err
		}
		for i+1 < len(q.targets) && q.targets[i+1].Address != next {
			i++
		}
	}
	return nil, begun, err
}

// Fail responds to a request that no server has answered. That none could be connected to has the reason of a pool
// without servers.
func (q *inferring) Fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errNoEndpoints) || isDial(err) {
		w.Header().Set(routing.ReasonHeader, string(routing.NoEndpoints))
		if q.rec != nil {
			q.rec.inferred.Reason = string(routing.NoEndpoints)
		}
	}
	q.exchange.Fail(w, r, err)
}

// answered takes the response of the server that the client gets.
func (q *inferring) answered(res *http.Response) {
	q.status = res.StatusCode
	q.prompt.Release() // no other server gets it
	q.parts = [3][]byte{}
	if q.choice != nil {
		if name, session := q.choice.Session(); name != "" {
			res.Header.Set(name, session)
		}
	}
	if _, upgraded := res.Body.(io.ReadWriteCloser); !upgraded {
		q.tokens = tokens{ReadCloser: res.Body, q: q}
		res.Body = &q.tokens
	}
}

// routingEndpoints are the endpoints in the form of carob's picker.
func routingEndpoints(all []*Target, namespace string, pods []*corev1.Pod) []routing.Endpoint {
	labels := map[types.UID]map[string]string{}
	for _, p := range pods {
		labels[p.UID] = p.Labels
	}
	out := make([]routing.Endpoint, 0, len(all))
	for _, t := range all {
		out = append(out, routing.Endpoint{Address: t.Address, Pod: t.Pod, Rank: t.Rank, Labels: labels[t.Pod],
			Name: types.NamespacedName{Namespace: namespace, Name: t.Name}, Ready: true})
	}
	return out
}
