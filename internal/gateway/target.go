package gateway

import (
	"context"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/gatewayplan/endpoints"
	"carob/internal/core/httproute"
	"carob/internal/gateway/certs"
	"carob/internal/gateway/http1"
	"carob/internal/gateway/proxy"
)

// Limits of connections to backends.
const (
	connectTimeout  = 5 * time.Second
	idleTimeout     = 90 * time.Second
	idlePerEndpoint = 512
	maxAnswerHeader = 256 << 10 // bytes
	writeBuffer     = 8 << 10   // bytes; a request with 4 KB is one write
)

// Target is an endpoint with its connections. It exists as long as a pool or a request refers to it.
type Target struct {
	endpoints.Endpoint
	host    string // Address
	traffic *traffic

	gone     atomic.Bool // removed from all pools: no new request may begin
	requests atomic.Int64
	pools    int     // that have it; guarded by traffic.mu
	of       []*pool // InferencePools that have it, or had it; guarded by traffic.mu

	mu         sync.Mutex
	transports map[mode]*keptTransport
	used       uint64 // how often a transport was requested
}

// keptTransport is a transport, and when it was used last.
type keptTransport struct {
	transport
	used uint64
}

// mostModes is how many modes of a target have connections. There are more when certificates change: each one is
// another mode, whose predecessor is not used any more.
const mostModes = 8

// transport has the connections of one mode.
type transport interface {
	http.RoundTripper
	CloseIdleConnections()
}

// plain is HTTP/1.1 without TLS. Most requests use the client of http1.
type plain struct {
	short *http1.Client
	full  transport
}

// RoundTrip implements http.RoundTripper.
func (p *plain) RoundTrip(r *http.Request) (*http.Response, error) {
	if http1.Takes(r) {
		return p.short.RoundTrip(r)
	}
	return p.full.RoundTrip(r)
}

// CloseIdleConnections implements transport.
func (p *plain) CloseIdleConnections() {
	p.short.CloseIdleConnections()
	p.full.CloseIdleConnections()
}

// mode is the protocol of a backend, and how it is verified.
type mode struct {
	protocol httproute.Protocol
	upgrade  bool // HTTP/1.1 only
	tls      httproute.BackendTLS
	secure   bool
}

// begin reserves the target for a request, unless it must not get a new one. The order of the two steps matters: the
// code that releases a pod sets gone, then counts the requests.
func (t *Target) begin() bool {
	t.requests.Add(1)
	if t.gone.Load() {
		t.end()
		return false
	}
	return true
}

// end releases the target. The last request of a removed target closes its connections.
func (t *Target) end() {
	if t.requests.Add(-1) == 0 && t.gone.Load() {
		t.closeIdle()
		t.traffic.left(t.Pod)
	}
}

func (t *Target) closeIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, tr := range t.transports {
		tr.CloseIdleConnections()
	}
}

// dialError is a failure before anything was sent.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

type connectKey struct{}

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}
	if limit, ok := ctx.Value(connectKey{}).(time.Duration); ok {
		d.Timeout = limit
	}
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, dialError{err}
	}
	return c, nil
}

// transport returns the connections for a mode.
func (t *Target) transport(m mode) (transport, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used++
	if tr := t.transports[m]; tr != nil {
		tr.used = t.used
		return tr.transport, nil
	}
	tr := &http.Transport{DialContext: dial, WriteBufferSize: writeBuffer,
		MaxIdleConnsPerHost: idlePerEndpoint, IdleConnTimeout: idleTimeout,
		DisableCompression: true, MaxResponseHeaderBytes: maxAnswerHeader, ExpectContinueTimeout: time.Second,
		TLSHandshakeTimeout: connectTimeout, Protocols: &http.Protocols{}}
	switch {
	case m.secure:
		tr.Protocols.SetHTTP1(!m.tls.H2)
		tr.Protocols.SetHTTP2(!m.upgrade)
		cfg, err := certs.Backend(&m.tls)
		if err != nil {
			return nil, err
		}
		tr.TLSClientConfig = cfg
	case m.protocol == httproute.H2C && !m.upgrade:
		tr.Protocols.SetUnencryptedHTTP2(true)
	default:
		tr.Protocols.SetHTTP1(true)
	}
	var out transport = proxy.Early{Transport: tr}
	if !m.secure && !m.upgrade && m.protocol != httproute.H2C {
		out = &plain{full: out, short: http1.New(http1.Config{Dial: dial, MostIdle: idlePerEndpoint,
			IdleTime: idleTimeout, HeaderBytes: maxAnswerHeader, Early: proxy.EarlyOf})}
	}
	t.keep(m, out)
	return out, nil
}

// keep keeps a transport instead of the one that was not used for the longest time. Requests that use that one go on.
// The lock is held.
func (t *Target) keep(m mode, tr transport) {
	if t.transports == nil {
		t.transports = map[mode]*keptTransport{}
	}
	if len(t.transports) >= mostModes {
		var oldest mode
		var last *keptTransport
		for m, tr := range t.transports { // any order: uses are counted
			if last == nil || tr.used < last.used {
				oldest, last = m, tr
			}
		}
		delete(t.transports, oldest)
		go last.CloseIdleConnections() // it may wait for a transport's lock
	}
	t.transports[m] = &keptTransport{tr, t.used}
}

// Facts are the properties of a request that a picker may use.
type Facts struct {
	Request *http.Request
	Source  *httproute.Source
	Backend *httproute.Backend
}

// Picker orders the endpoints of a backend for a request: the first gets it; if it cannot be connected to, the next.
type Picker interface {
	Pick(ctx context.Context, f *Facts, endpoints []*Target) ([]*Target, error)
}

// attempts is at how many endpoints a request is tried.
const attempts = 3

// roundRobin is the picker of Services. Only the first endpoint of a request is the next one in order. Each further one
// is any of another part of all: pods with neighbouring addresses began together, and often end together.
type roundRobin struct{ next atomic.Uint64 }

func (r *roundRobin) Pick(_ context.Context, _ *Facts, endpoints []*Target) ([]*Target, error) {
	all := len(endpoints)
	n := min(all, attempts)
	out := make([]*Target, 0, n)
	at := r.next.Add(1)
	for i := range n {
		from := i * all / n
		if part := (i+1)*all/n - from; i > 0 && part > 1 {
			from += rand.IntN(part)
		}
		out = append(out, endpoints[(at+uint64(from))%uint64(all)])
	}
	return out, nil
}

// pool has the endpoints of one backend.
type pool struct {
	endpoints atomic.Pointer[[]*Target]
	pick      Picker
	infers    bool                   // it is an InferencePool
	served    atomic.Pointer[served] // of an InferencePool; nil: a Service
}

func newPool() *pool {
	p := &pool{pick: &roundRobin{}}
	p.endpoints.Store(&[]*Target{})
	return p
}

// traffic has all targets, and which pods may get requests.
type traffic struct {
	mu      sync.Mutex
	targets map[endpoints.Endpoint]*Target // by address and pod
	pods    map[types.UID]map[*Target]bool
	gone    map[types.UID]bool // not reported to Follow yet; true: also while it is routed
	wake    chan struct{}      // capacity 1
}

func newTraffic() *traffic {
	return &traffic{targets: map[endpoints.Endpoint]*Target{}, pods: map[types.UID]map[*Target]bool{},
		gone: map[types.UID]bool{}, wake: make(chan struct{}, 1)}
}

// set sets the endpoints of a pool, in the order of their addresses. Those that stay keep their targets without a
// lookup: there may be thousands, of which one changes.
func (t *traffic) set(p *pool, all []endpoints.Endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := *p.endpoints.Load()
	now := make([]*Target, 0, len(all))
	var gone []*Target
	for i := range all {
		for len(before) > 0 && before[0].Address.Compare(all[i].Address) < 0 {
			gone, before = append(gone, before[0]), before[1:]
		}
		if len(before) > 0 && before[0].Endpoint == all[i] {
			now, before = append(now, before[0]), before[1:]
			continue
		}
		target := t.join(all[i])
		if p.infers && !slices.Contains(target.of, p) {
			target.of = append(target.of, p)
		}
		now = append(now, target)
	}
	p.endpoints.Store(&now)
	for _, target := range append(gone, before...) {
		t.leave(target)
	}
}

// join adds a pool to the ones that have a target.
func (t *traffic) join(e endpoints.Endpoint) *Target {
	target := t.targets[e]
	if target == nil {
		target = &Target{Endpoint: e, host: e.Address.String(), traffic: t}
		t.targets[e] = target
		if t.pods[e.Pod] == nil {
			t.pods[e.Pod] = map[*Target]bool{}
		}
		t.pods[e.Pod][target] = true
	}
	target.pools++
	return target
}

func (t *traffic) leave(target *Target) {
	if target.pools--; target.pools > 0 {
		return
	}
	target.gone.Store(true)
	delete(t.targets, target.Endpoint)
	t.report(target.Pod)
	if target.requests.Load() == 0 {
		t.forget(target)
		go target.closeIdle() // it may wait for a transport's lock
	}
	poke(t.wake)
}

func (t *traffic) forget(target *Target) {
	if delete(t.pods[target.Pod], target); len(t.pods[target.Pod]) == 0 {
		delete(t.pods, target.Pod)
	}
}

// left is called when the last request of a target that was removed from its pools has ended.
func (t *traffic) left(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for target := range t.pods[pod] {
		if target.pools == 0 && target.requests.Load() == 0 {
			t.forget(target)
		}
	}
	t.report(pod)
	poke(t.wake)
}

// report adds a pod to those that Follow reports next. t.mu is held.
func (t *traffic) report(pod types.UID) {
	if _, ok := t.gone[pod]; !ok {
		t.gone[pod] = false
	}
}

// routed reports whether a pod gets new requests although it is being deleted, or has requests
// that have not ended.
func (t *traffic) routed(pod types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for target := range t.pods[pod] {
		if target.pools > 0 && !target.Ending || target.requests.Load() > 0 {
			return true
		}
	}
	return false
}

// follow calls released for each pod of which routed becomes false, or drainTimeout changes, until ctx ends.
func (t *traffic) follow(ctx context.Context, released func(types.UID)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		}
		t.mu.Lock()
		all := maps.Clone(t.gone)
		clear(t.gone)
		t.mu.Unlock()
		for pod, always := range all {
			if pod != "" && (always || !t.routed(pod)) {
				released(pod)
			}
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
