package inference

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/routing"
)

// Refused is the reason why a request is not served.
type Refused struct{ Reason routing.Reason }

func (e *Refused) Error() string { return "the request is refused: " + string(e.Reason) }

// ErrReplaced is why a request was not served: the InferencePool has another picker now, which is to be called.
var ErrReplaced = errors.New("the pool has another picker")

// Status is the HTTP status of the answer. The answer has the header routing.ReasonHeader with the reason, too.
func (e *Refused) Status() int { return e.Reason.Status() }

// Pool picks endpoints for the requests of one InferencePool.
type Pool struct {
	name      types.NamespacedName
	transport http.RoundTripper
	verified  http.RoundTripper // verifies certificates
	figures   *figures
	ctx       context.Context //nolint:containedctx // the life of the scrapers, which SetEndpoints starts
	cancel    context.CancelFunc
	scraping  sync.WaitGroup
	refusals  atomic.Int64
	replaced  atomic.Bool

	mu       sync.Mutex
	config   *routing.Config
	state    *routing.Pool
	scrapers map[routing.Ref]*scraper
	// followers of KV events, and the tokenizer; none without precise-prefix-cache-scorer
	followers map[routing.Ref]*follower
	tokens    *tokenizer
	waiters   map[routing.Ticket]*waiter
	expiry    *time.Timer // nil: nothing is held
	inFlight  int
	lastUse   time.Time     // when a request last came or ended
	active    bool          // there are requests
	woke      time.Time     // since when
	woken     chan struct{} // closed while active
	closed    bool
}

// waiter is a request that is held.
type waiter struct {
	request *routing.Request
	since   time.Time
	got     chan *Pick // capacity 1
	refused routing.Reason
}

// New makes a pool without endpoints, with routing.DefaultConfig or one of ReadConfig. transport is for scraping; nil:
// NewTransport. Close ends it.
func New(name types.NamespacedName, c *routing.Config, transport http.RoundTripper) *Pool {
	verified := transport
	if transport == nil {
		transport, verified = NewTransport(false), NewTransport(true)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool{name: name, transport: transport, verified: verified, figures: newFigures(), ctx: ctx, cancel: cancel,
		config: c, state: routing.NewPool(c),
		scrapers: map[routing.Ref]*scraper{}, followers: map[routing.Ref]*follower{},
		waiters: map[routing.Ticket]*waiter{},
		woken:   make(chan struct{})}
	p.state.SetPace(idlePace + scrapeTimeout)
	p.figures.add(p)
	return p
}

// Configure changes the configuration; requests that are held stay.
func (p *Pool) Configure(c *routing.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.config = c
	p.state.Configure(c)
	p.scrape()
	p.followEvents()
	p.drain()
}

// Hasher returns the function that splits prompts into blocks, for routing.Request.Prefix.
func (p *Pool) Hasher() routing.Hasher {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Hasher()
}

// sessionHeader is the header of session affinity; empty: there is none.
func (p *Pool) sessionHeader() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config.SessionHeader()
}

// SetEndpoints replaces the endpoints. Removed endpoints get no further request; their current requests continue.
func (p *Pool) SetEndpoints(all []routing.Endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	gone := p.pods()
	p.state.SetEndpoints(all)
	for pod := range p.pods() {
		delete(gone, pod)
	}
	p.figures.left(gone)
	p.scrape()
	p.followEvents()
	p.drain()
}

// pods returns the names of the endpoints' pods. The lock is held.
func (p *Pool) pods() map[types.NamespacedName]bool {
	out := map[types.NamespacedName]bool{}
	for _, ref := range p.state.Refs() {
		out[p.state.Endpoint(ref).Name] = true
	}
	return out
}

// scrape starts and ends scrapers. The lock is held.
func (p *Pool) scrape() {
	there := map[routing.Ref]bool{}
	for _, ref := range p.state.Refs() {
		there[ref] = true
		e := p.state.Endpoint(ref)
		engine, name, known := p.config.Engine(e.Labels)
		if s := p.scrapers[ref]; s != nil {
			if s.name == name && s.engine == engine && s.source == p.config.Source() {
				continue
			}
			s.stop() // its label, or the configuration changed
		}
		ctx, stop := context.WithCancel(p.ctx)
		s := &scraper{stop: stop, engine: engine, name: name, known: known, source: p.config.Source()}
		p.scrapers[ref] = s
		p.scraping.Add(1)
		go p.follow(ctx, ref, e.Address, s)
	}
	for ref, s := range p.scrapers {
		if !there[ref] {
			s.stop()
			delete(p.scrapers, ref)
		}
	}
}

// Replaced announces that the InferencePool has another picker, before Close: requests that are held then get
// ErrReplaced.
func (p *Pool) Replaced() { p.replaced.Store(true) }

// Close refuses the requests that are held, and ends all goroutines before it returns.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	for t, w := range p.waiters {
		p.state.Cancel(t)
		p.refuse(t, w, routing.ShuttingDown)
	}
	if p.expiry != nil {
		p.expiry.Stop()
	}
	p.figures.left(p.pods())
	p.mu.Unlock()
	p.cancel()
	p.scraping.Wait()
	p.tokens.close()
	p.figures.remove(p)
	for _, rt := range []http.RoundTripper{p.transport, p.verified} {
		if t, ok := rt.(interface{ CloseIdleConnections() }); ok {
			t.CloseIdleConnections()
		}
	}
}

// Pick chooses endpoints for a request. It waits while the request is held; the wait ends when a server has capacity,
// with a *Refused, or with ctx. The caller must always call End on the result.
func (p *Pool) Pick(ctx context.Context, r *routing.Request) (*Pick, error) {
	now := time.Now()
	if r.Random == 0 {
		r.Random = rand.Uint64()
	}
	if r.Received.IsZero() {
		r.Received = now
	}
	if at, ok := ctx.Deadline(); ok && (r.Deadline.IsZero() || at.Before(r.Deadline)) {
		r.Deadline = at
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, p.refusal(r, routing.ShuttingDown)
	}
	p.wake(now)
	d := p.state.Decide(r, now)
	switch d.Verdict {
	case routing.Serve:
		k := p.pick(r, &d, now)
		p.mu.Unlock()
		p.figures.decided(k, time.Since(now))
		return k, nil
	case routing.Refuse:
		p.mu.Unlock()
		return nil, p.refusal(r, d.Reason)
	case routing.Hold:
	}
	w := &waiter{request: r, since: now, got: make(chan *Pick, 1)}
	t := p.state.Enqueue(r, now)
	p.waiters[t] = w
	p.expire()
	p.mu.Unlock()
	return p.wait(ctx, t, w)
}

// wait waits until a held request may continue.
func (p *Pool) wait(ctx context.Context, t routing.Ticket, w *waiter) (*Pick, error) {
	var k *Pick
	select {
	case k = <-w.got:
	case <-ctx.Done():
		p.mu.Lock()
		if p.state.Cancel(t) {
			delete(p.waiters, t)
			w.refused = routing.Cancelled
			w.got <- nil
		}
		p.mu.Unlock()
		if k = <-w.got; k != nil { // it was released at the same moment
			k.End(Result{Outcome: routing.Aborted})
			k, w.refused = nil, routing.Cancelled
		}
	}
	if k == nil {
		err := p.refusal(w.request, w.refused)
		if !errors.Is(err, ErrReplaced) { // its wait goes on
			p.figures.waited(p.name, w, false)
		}
		return nil, err
	}
	p.figures.waited(p.name, w, true)
	p.figures.decided(k, 0)
	return k, nil
}

// Refusals counts the requests that the picker has refused since the pool was made.
func (p *Pool) Refusals() int64 { return p.refusals.Load() }

func (p *Pool) refusal(r *routing.Request, why routing.Reason) error {
	if why == routing.ShuttingDown && p.replaced.Load() {
		return ErrReplaced // it is no refusal yet
	}
	p.figures.refused(r, why)
	p.refusals.Add(1)
	return &Refused{why}
}

// pick applies a decision to serve: the first endpoint has the request from now on. The lock is held.
func (p *Pool) pick(r *routing.Request, d *routing.Decision, now time.Time) *Pick {
	k := &Pick{pool: p, request: r, Decision: *d, began: now}
	for i := range d.N {
		k.addresses[i] = p.state.Endpoint(d.Chosen[i]).Address
	}
	if d.HasPrefill {
		k.Prefill = p.state.Endpoint(d.Prefill).Address
		k.prefill = p.state.Sent(d.Prefill, r, now)
	}
	k.pod = p.state.Endpoint(d.Chosen[0]).Name
	p.inFlight++
	k.flight = p.state.Sent(d.Chosen[0], r, now)
	return k
}

// drain releases held requests while servers have capacity. The lock is held.
func (p *Pool) drain() {
	for p.state.Held() > 0 {
		now := time.Now()
		t, d := p.state.Next(now)
		if t == 0 {
			break
		}
		w := p.waiters[t]
		if w == nil {
			continue
		}
		if d.Verdict != routing.Serve {
			p.refuse(t, w, d.Reason)
			continue
		}
		delete(p.waiters, t)
		w.got <- p.pick(w.request, &d, now)
	}
	p.expire()
}

func (p *Pool) refuse(t routing.Ticket, w *waiter, why routing.Reason) {
	delete(p.waiters, t)
	w.refused = why
	w.got <- nil
}

// expire refuses the requests whose time is over, and sets the timer for the next one. The lock is held.
func (p *Pool) expire() {
	for {
		t, why, next := p.state.Expire(time.Now())
		if t == 0 {
			if next.IsZero() {
				if p.expiry != nil {
					p.expiry.Stop()
					p.expiry = nil
				}
				return
			}
			after := time.Until(next)
			if p.expiry == nil {
				p.expiry = time.AfterFunc(after, func() {
					p.mu.Lock()
					defer p.mu.Unlock()
					if !p.closed {
						p.expire()
					}
				})
			} else {
				p.expiry.Reset(after)
			}
			return
		}
		if w := p.waiters[t]; w != nil {
			p.refuse(t, w, why)
		}
	}
}

// Status is the state of an endpoint for `carob explain` and the metrics page.
type Status struct {
	Endpoint routing.Endpoint
	Engine   string
	Stats    routing.Stats
	InFlight int
	Problem  string // of the last scrape; empty: none
	// Cache is the cache content according to its KV events, nil without precise-prefix-cache-scorer; CacheProblem is
	// their error.
	Cache        *routing.CacheState
	CacheProblem string
}

// Statuses returns the endpoints and the sums of the pool.
func (p *Pool) Statuses() (routing.Figures, []Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Status
	for _, ref := range p.state.Refs() {
		s := Status{Endpoint: *p.state.Endpoint(ref)}
		s.Stats, s.InFlight = p.state.Stats(ref)
		if sc := p.scrapers[ref]; sc != nil {
			s.Engine = sc.name
			if sc.problem != nil {
				s.Problem = sc.problem.Error()
			}
			if !sc.known {
				s.Problem = fmt.Sprintf("the engine %q is not known: it is read like %s; %s", sc.name, sc.engine.Name,
					s.Problem)
			}
		}
		if f := p.followers[ref]; f != nil {
			s.Cache = new(p.state.CacheState(ref))
			if f.problem != nil {
				s.CacheProblem = f.problem.Error()
			}
		}
		out = append(out, s)
	}
	return p.state.Figures(time.Now()), out
}

// TokenProblem is why the tokens of prompts are unknown, without which KV events cannot be used; empty: no problem, or
// none were needed.
func (p *Pool) TokenProblem() string {
	p.mu.Lock()
	t := p.tokens
	p.mu.Unlock()
	if err := t.trouble(); err != nil {
		return err.Error()
	}
	return ""
}

// Measures are the values of a metric of the pool (routing.Measures); ok is false if there is no such metric. A reader
// of the number of held requests counts as an autoscaler: requests then wait for the first server.
func (p *Pool) Measures(metric string) (all []routing.Measure, ok bool) {
	sums, servers := p.Statuses()
	loads := make([]routing.ServerLoad, 0, len(servers))
	for i := range servers {
		loads = append(loads, routing.ServerLoad{Name: servers[i].Name(), Waiting: servers[i].Stats.Waiting})
	}
	all, wakes, ok := routing.Measures(metric, &sums, loads)
	if wakes {
		p.mu.Lock()
		p.state.HeldRead(time.Now())
		p.mu.Unlock()
	}
	return all, ok
}

// Name is that of the pod, with the rank if it is not the first.
func (s *Status) Name() string {
	if s.Endpoint.Rank == 0 {
		return s.Endpoint.Name.Name
	}
	return s.Endpoint.Name.Name + "-rank-" + strconv.Itoa(s.Endpoint.Rank)
}

// Pick is the choice of endpoints for a request. Its methods may be called by one goroutine at a time.
type Pick struct {
	routing.Decision
	// Prefill is the server that computes the prompt first, for x-prefiller-host-port; invalid: none.
	Prefill netip.AddrPort

	pool      *Pool
	request   *routing.Request
	pod       types.NamespacedName // of the first endpoint
	addresses [routing.MostChosen]netip.AddrPort
	flight    routing.Flight
	prefill   routing.Flight // at the server that computes the prompt, until the response begins
	at        int            // index of the endpoint that has the request
	again     bool           // it was sent to a second server after the first one may have received it
	began     time.Time
	first     time.Time
	ended     bool
	series    *series // of the request; nil: it is not counted
}

// Endpoints returns the addresses in order. The first one has the request already.
func (k *Pick) Endpoints() []netip.AddrPort { return k.addresses[:k.N] }

// Address is the endpoint that has the request.
func (k *Pick) Address() netip.AddrPort { return k.addresses[k.at] }

// Session is the header of the response that sends the client's next request to the endpoint of this one, if the client
// returns it; an empty name: there is no session affinity, or the endpoint was removed.
func (k *Pick) Session() (name, value string) {
	k.pool.mu.Lock()
	defer k.pool.mu.Unlock()
	name = k.pool.config.SessionHeader()
	if e := k.pool.state.Endpoint(k.Chosen[k.at]); e != nil && name != "" {
		return name, base64.StdEncoding.EncodeToString([]byte(e.Session()))
	}
	return "", ""
}

// Failed records that the endpoint did not respond, and returns the one to try next; false: none.
// sent: the request, or a part of it, may have reached the server. A request is sent to a second
// server once, and only before the first byte of an answer; servers that cannot be connected to
// do not count. Endpoints that have left are skipped.
func (k *Pick) Failed(sent bool) (netip.AddrPort, bool) {
	p := k.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if k.ended || !k.first.IsZero() || sent && k.again {
		return netip.AddrPort{}, false
	}
	k.again = k.again || sent
	p.state.Ended(&k.flight, routing.Failed, 0, now)
	defer p.drain()
	for k.at+1 < k.N {
		k.at++
		e := p.state.Endpoint(k.Chosen[k.at])
		if e == nil || !e.Ready || e.Draining {
			continue
		}
		k.flight = p.state.Sent(k.Chosen[k.at], k.request, now)
		p.figures.retried(p.name)
		return k.addresses[k.at], true
	}
	return netip.AddrPort{}, false
}

// FirstByte records that the response begins.
func (k *Pick) FirstByte() {
	now := time.Now()
	k.pool.mu.Lock()
	defer k.pool.mu.Unlock()
	if k.first.IsZero() && !k.ended {
		k.first = now
		k.pool.state.FirstToken(&k.flight, now)
		k.pool.state.Ended(&k.prefill, routing.Answered, 0, now)
	}
}

// Result is the result of a request. Unknown numbers are 0.
type Result struct {
	Outcome      routing.Outcome
	Status       int // of the answer; 0: there was none
	AnswerBytes  int64
	InputTokens  int // as the server counted them
	OutputTokens int
	CachedTokens int
}

// End records that the request is over. Later calls do nothing.
func (k *Pick) End(r Result) {
	now := time.Now()
	p := k.pool
	p.mu.Lock()
	if k.ended {
		p.mu.Unlock()
		return
	}
	k.ended = true
	p.inFlight--
	p.lastUse = now
	p.state.Ended(&k.flight, r.Outcome, r.OutputTokens, now)
	p.state.Ended(&k.prefill, r.Outcome, 0, now)
	p.drain()
	p.mu.Unlock()
	p.figures.ended(k, &r, now)
}
