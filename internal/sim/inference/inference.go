// Package inference runs the decisions of core/routing against simulated model servers in virtual time, one run for
// each seed: prompts with common prefixes, bursts, adapters, priorities, clients that cancel requests; servers that are
// slow, die, drain, start, do not answer scrapes, or report wrong values. It checks invariants while it runs, and
// compares the time to the first token with round robin. Its tests run it. It must never open a socket or read the
// clock.
package inference

import (
	"container/heap"
	"container/list"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/routing"
	"carob/internal/sim/fakeapi"
)

// The invariants.
const (
	Members fakeapi.Invariant = "a request goes only to a ready server of the pool that is not draining (2.1, D4)"
	Order   fakeapi.Invariant = "what can be shed is never served while something of a higher priority waits, and nothing " +
		"else is refused for load without a full queue (2.4, D4)"
	Bounded  fakeapi.Invariant = "no more requests are held than the configuration says (2.4)"
	Ends     fakeapi.Invariant = "each request ends once: answered, failed, or refused for one reason"
	Fair     fakeapi.Invariant = "with round robin no flow goes twice while another one of its priority waits (2.4)"
	Accounts fakeapi.Invariant = "when all requests have ended no server has any"
	Once     fakeapi.Invariant = "a request is sent to a second server once, and never after its first token"
	InTime   fakeapi.Invariant = "no request is held beyond its time"
	Works    fakeapi.Invariant = "no request is held while a server is known to have room"
	Starts   fakeapi.Invariant = "while an autoscaler reads how many requests wait, none is refused for want of a server " +
		"before its time, or without a full queue"
	Same fakeapi.Invariant = "a decision has no side effect: the next one for the same input is the same"
)

// Sabotage breaks the driver in one way; the zero value breaks nothing.
type Sabotage struct {
	Endpoints  func([]routing.Endpoint)              // changes the endpoints that the pool gets
	Request    func(*routing.Request)                // changes the request
	Decision   func(first bool, d *routing.Decision) // changes a decision
	Limits     int                                   // number of held requests beyond the checked limit
	Lose       bool                                  // requests that continue are dropped
	Forget     bool                                  // ends are not reported
	Retry      bool                                  // a request is retried without limit
	Late       bool                                  // nothing expires
	Idle       bool                                  // a scrape does not let requests continue
	Uninformed bool                                  // the pool is not notified of the autoscaler
	// Unnumbered: KV events that are lost leave no gap
	Unnumbered bool
}

var begin = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)

const (
	heldAtMost = 40
	ttl        = 20 * time.Second
	pace       = 50 * time.Millisecond
)

// request is a request of a client.
type request struct {
	facts    routing.Request // the facts that the client intends
	tokens   int
	text     []uint32 // the tokens of the prompt
	answer   int      // tokens
	ends     int
	servers  int // that have received it
	again    bool
	ticket   routing.Ticket
	decision routing.Decision
	at       int // index in the decision
	flight   routing.Flight
	job      *job
	came     time.Time
}

type event struct {
	at  time.Time
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any) {
	if ev, ok := x.(event); ok {
		*e = append(*e, ev)
	}
}

func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

type world struct {
	*rand.Rand
	sabotage Sabotage
	now      time.Time
	events   events
	seq      int

	pool      *routing.Pool
	flow      bool
	fair      bool
	precise   bool // KV events are followed
	troubled  bool // events are sometimes lost
	robin     int  // round robin instead of the pool's choice: the next server; -1: no
	servers   []*server
	endpoints map[netip.AddrPort]*server // endpoints that the pool has
	made      int
	requests  []*request
	left      int // requests that have ended
	held      map[routing.Ticket]*request
	turns     map[*request]map[string]int // flows that continued since a flow waits, by its oldest request
	settled   bool
	scaler    bool      // an autoscaler starts the first server, and ends the last one
	polled    time.Time // when it last read how many requests wait

	ttft            []time.Duration
	cached, prompts int
	answered        int
	refused         int
}

func (w *world) at(t time.Time, do func()) {
	w.seq++
	heap.Push(&w.events, event{t, w.seq, do})
}

func (w *world) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

// one returns true once in n times on average.
func (w *world) one(n int) bool { return w.IntN(n) == 0 }

func config(flow, fair, precise bool, most int, detector string) *routing.Config {
	scorer := "prefix-cache-scorer"
	if precise {
		scorer = "precise-prefix-cache-scorer"
	}
	gates, policy := "", ""
	if flow {
		gates = `"featureGates": ["flowControl"],`
	}
	if fair {
		policy = `"fairnessPolicyRef": "round-robin-fairness-policy",`
	}
	c, err := routing.ParseConfig(fmt.Appendf(nil, `{"apiVersion": "inference.networking.x-k8s.io/v1alpha1",
		"kind": "EndpointPickerConfig", %s
		"plugins": [{"type": "queue-scorer"}, {"type": "kv-cache-utilization-scorer"}, {"type": "%s"},
			{"type": "lora-affinity-scorer"}, {"type": "%s"}],
		"saturationDetector": {"pluginRef": "%s"},
		"schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer", "weight": 2},
			{"pluginRef": "kv-cache-utilization-scorer", "weight": 2}, {"pluginRef": "%s", "weight": 3},
			{"pluginRef": "lora-affinity-scorer"}]}],
		"flowControl": {"defaultRequestTTL": "%s", "maxRequests": "%d", "defaultPriorityBand": {%s "maxRequests": "%d"}}}`,
		gates, scorer, detector, detector, scorer, ttl, most, policy, most))
	if err != nil {
		panic(err)
	}
	return c
}

// server adds a server that will become ready.
func (w *world) server() *server {
	w.made++
	s := &server{pod: types.UID(fmt.Sprint("pod", w.made)), most: 1 + w.IntN(12), overhead: 20 * time.Millisecond,
		perToken: 250 * time.Microsecond, each: 12 * time.Millisecond, capacity: 20000 + w.IntN(100000),
		slots: w.IntN(3), blocks: 200 + w.IntN(3000), cache: map[uint64]*list.Element{}, used: list.New(), slow: 1}
	// Addresses are reused: a new pod may have that of an old one.
	s.address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(w.made % 16)}), 8000) //nolint:gosec // small
	for _, o := range w.servers {
		if o.address == s.address && !o.ended {
			s.address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(w.made)}), 8000) //nolint:gosec // small
		}
	}
	w.servers = append(w.servers, s)
	return s
}

// updatePool updates the endpoints of the pool.
func (w *world) updatePool() {
	var all []routing.Endpoint
	w.endpoints = map[netip.AddrPort]*server{}
	for _, s := range w.servers {
		if s.ended && w.one(2) || s.loading && w.one(2) { // the watch may report a death late, but never a drain
			continue
		}
		if !s.draining && !s.loading {
			w.endpoints[s.address] = s
		}
		all = append(all, routing.Endpoint{Address: s.address, Pod: s.pod, Ready: !s.loading, Draining: s.draining,
			Name: types.NamespacedName{Namespace: "n", Name: string(s.pod)}})
	}
	if w.sabotage.Endpoints != nil {
		w.sabotage.Endpoints(all)
	}
	w.pool.SetEndpoints(all)
	w.follow()
	w.drain()
}

// scrape scrapes all servers, like the driver: it takes time, and the metrics are from a moment in
// between.
func (w *world) scrape() {
	for _, ref := range w.pool.Refs() {
		began, s := w.now, w.of(ref)
		w.pool.Scraping(ref, began)
		if s == nil || s.ended || s.condition == unresponsive || s.condition == late && !w.one(20) {
			continue
		}
		w.after(time.Duration(w.IntN(10))*time.Millisecond, func() {
			if s.ended {
				return
			}
			stats := s.stats()
			w.after(time.Duration(w.IntN(10))*time.Millisecond, func() {
				stats.At = began
				w.pool.Observe(ref, stats)
				if !w.sabotage.Idle {
					w.drain()
				}
			})
		})
	}
}

// of returns the server behind a reference.
func (w *world) of(ref routing.Ref) *server {
	e := w.pool.Endpoint(ref)
	if e == nil {
		return nil
	}
	for _, s := range w.servers {
		if s.pod == e.Pod {
			return s
		}
	}
	return nil
}

// Run runs a seed for a duration, and returns the first broken invariant, nil for none.
func Run(seed uint64, long time.Duration, sabotage Sabotage) error {
	return fakeapi.Catch(func() {
		w := &world{Rand: rand.New(rand.NewPCG(seed, 16)), sabotage: sabotage, now: begin, robin: -1,
			held: map[routing.Ticket]*request{}, turns: map[*request]map[string]int{}}
		w.flow, w.fair = !w.one(3), w.one(2)
		w.precise = w.one(2)
		w.troubled = w.precise
		detector := "utilization-detector"
		if w.one(4) {
			detector = "concurrency-detector"
		}
		w.pool = routing.NewPool(config(w.flow, w.fair, w.precise, heldAtMost+sabotage.Limits, detector))
		w.pool.SetPace(pace)
		for range 1 + w.IntN(6) {
			w.server()
		}
		w.updatePool()
		w.repeat(pace, w.scrape)
		w.repeat(300*time.Millisecond, w.trouble)
		w.repeat(10*time.Millisecond, w.expire)
		if w.scaler = w.one(2); w.scaler {
			w.scale()
			w.repeat(5*time.Second, w.scale)
		}
		w.arrivals(begin.Add(long))
		w.until(begin.Add(long))
		w.rest()
	})
}

// repeat calls a function repeatedly, until the faults end.
func (w *world) repeat(every time.Duration, do func()) {
	w.after(every, func() {
		do()
		w.repeat(every, do)
	})
}

// until runs all events up to a time.
func (w *world) until(end time.Time) {
	w.run(end, func() bool { return false })
	w.now = end
}

// over reports whether all requests that came have ended.
func (w *world) over() bool {
	for w.left < len(w.requests) && w.requests[w.left].ends > 0 {
		w.left++
	}
	return w.left == len(w.requests)
}

// run runs all events up to a time, or a number of requests.
func (w *world) run(end time.Time, enough func() bool) {
	for len(w.events) > 0 && !w.events[0].at.After(end) && !enough() {
		e, ok := heap.Pop(&w.events).(event)
		if !ok {
			return
		}
		w.now = e.at
		e.do()
		w.check()
	}
}

// scale simulates an autoscaler: it reads the number of held requests, and starts the first server, which may take
// long, never become ready, or come with a second one; sometimes it ends all of them.
func (w *world) scale() {
	w.polled = w.now
	if !w.sabotage.Uninformed {
		w.pool.HeldRead(w.now)
	}
	switch {
	case w.settled:
	case len(w.held) > 0 && w.alive() == 0 && !w.one(4):
		for range 1 + w.IntN(2) {
			s := w.server()
			s.loading = true
			w.after(time.Duration(w.IntN(18000))*time.Millisecond, func() { s.loading = false; w.updatePool() })
		}
		w.updatePool()
	case w.one(3):
		for _, s := range w.servers {
			if s.draining || s.ended {
				continue
			}
			s.draining = true
			w.after(2*time.Second, func() { w.kill(s); w.updatePool() })
		}
		w.updatePool()
	}
}

// trouble changes the servers.
func (w *world) trouble() {
	if w.settled || len(w.servers) == 0 {
		return
	}
	s := w.servers[w.IntN(len(w.servers))]
	switch n := w.IntN(60); {
	case n == 0:
		w.kill(s)
		w.after(time.Duration(w.IntN(2000))*time.Millisecond, w.updatePool)
	case n == 1 && !s.ended:
		s.draining = true
		w.updatePool()
		w.after(10*time.Second, func() { w.kill(s); w.updatePool() })
	case n < 4 && len(w.servers) < 40:
		s := w.server()
		s.loading = true
		w.updatePool()
		w.after(time.Duration(w.IntN(5000))*time.Millisecond, func() { s.loading = false; w.updatePool() })
	case n < 8:
		s.condition = condition(w.IntN(4))
	case n < 10:
		s.slow = 1 + w.IntN(4)
	case n >= 55:
		w.loseEvents(s)
		w.after(time.Duration(w.IntN(3000))*time.Millisecond, w.follow)
	case n < 20:
		s.condition, s.slow = truthful, 1
	}
}

// rest lets all requests end: servers report true metrics, and there are no new requests.
func (w *world) rest() {
	w.settled = true
	for _, s := range w.servers {
		s.condition, s.slow, s.loading = truthful, 1, false
	}
	if len(w.servers) == 0 || w.alive() == 0 {
		w.server()
	}
	w.updatePool()
	w.run(w.now.Add(10*time.Minute), w.over)
	w.until(w.now.Add(5 * time.Second)) // nothing happens any more
	w.checkEnd()
}

func (w *world) alive() (n int) {
	for _, s := range w.servers {
		if !s.ended && !s.draining {
			n++
		}
	}
	return n
}
