package routing

import (
	"net/netip"
	"slices"
	"time"
)

// Limits of the state of a pool.
const (
	MostEndpoints = 1 << 14
	mostAdapters  = 1 << 16 // names of adapters; protects against servers that make up names
	mostPerServer = 1024    // adapters of one server
)

// staleLoad is the age of metrics from which only the pool's own count of requests is used.
const staleLoad = 2 * time.Second

// Pool is the state of one InferencePool. The zero value is not usable: see NewPool. It is not safe for several
// goroutines at once.
type Pool struct {
	config   *Config
	ends     []end  // by slot
	loads    []load // by slot; the part that decisions read
	free     []int32
	live     []int32 // slots of endpoints in the pool, in the order of SetEndpoints
	byAddr   map[netip.AddrPort]int32
	session  map[string]int32
	names    map[string]int32 // adapters → number
	crowded  int              // observations while there is hardly room for names
	index    *index
	blocks   *blockIndex // nil: no precise-prefix-cache-scorer
	precise  *Precise    // of blocks
	pace     time.Duration
	ready    int
	block    int // tokens, as reported by the servers
	colds    int64
	turns    []int64 // by slot: sequence number of the last request sent to it; 0: none
	turn     int64   // the last one of all
	all      latency // of all endpoints: for those with few observations
	flow     *queues
	heldRead time.Time // when an autoscaler last read the number of held requests
	work     view
}

// end is an endpoint, without the part that each decision reads.
type end struct {
	Endpoint
	gen     uint32
	used    bool
	stats   Stats
	active  []int32 // adapters
	queued  []int32
	fits    uint64 // label filters that it matches
	latency latency
	cold    int64 // sequence number of its last prompt that no server had cached
	begun   int64 // when the current scrape began
	sinceIt int32 // unfinished requests sent since then
	ownIt   int32 // requests of this gateway that the scrape may include
}

// load is the part of an endpoint that each decision reads: one cache line.
type load struct {
	scraped int64 // start of its last scrape, in Unix nanoseconds; 0: never
	waiting int32
	running int32
	since   int32 // unfinished requests sent since the scrape: not in its metrics
	flying  int32 // unfinished requests
	unbegun int32 // of them, those whose response has not begun
	fits    int32 // number of running requests when others waited: its maximum; 0: not known
	slots   int32 // adapters that it can load
	loaded  int32 // adapters running or waiting
	foreign int32 // waiting requests that this gateway has not sent: at least
	serves  bool  // ready, and not draining
	cache   float64
	tokens  int64 // of prompts without a response yet, without the cached part
}

// NewPool makes a pool without endpoints.
func NewPool(c *Config) *Pool {
	p := &Pool{byAddr: map[netip.AddrPort]int32{}, session: map[string]int32{}, names: map[string]int32{},
		index: newIndex()}
	p.Configure(c)
	return p
}

// Configure changes the configuration. The state of endpoints stays.
func (p *Pool) Configure(c *Config) {
	p.config = c
	p.usePrecise()
	for _, slot := range p.live {
		p.ends[slot].fits = p.labels(p.ends[slot].Labels)
		p.resize(slot)
	}
	p.setFlow()
}

// labels returns the label filters that a set of labels matches.
func (p *Pool) labels(set map[string]string) (bits uint64) {
	for i, f := range p.config.labels {
		if f.fits(set) {
			bits |= 1 << i
		}
	}
	return bits
}

// Endpoint returns an endpoint of the pool; nil: it is no longer there.
func (p *Pool) Endpoint(ref Ref) *Endpoint {
	if e := p.at(ref); e != nil {
		return &e.Endpoint
	}
	return nil
}

func (p *Pool) at(ref Ref) *end {
	if int(ref.slot) < len(p.ends) && ref.gen != 0 && p.ends[ref.slot].gen == ref.gen && p.ends[ref.slot].used {
		return &p.ends[ref.slot]
	}
	return nil
}

func (p *Pool) ref(slot int32) Ref { return Ref{slot, p.ends[slot].gen} }

// Find returns the endpoint at an address.
func (p *Pool) Find(addr netip.AddrPort) (Ref, bool) {
	slot, ok := p.byAddr[addr]
	if !ok {
		return Ref{}, false
	}
	return p.ref(slot), true
}

// Refs returns all endpoints, in the order of SetEndpoints.
func (p *Pool) Refs() []Ref {
	out := make([]Ref, 0, len(p.live))
	for _, slot := range p.live {
		out = append(out, p.ref(slot))
	}
	return out
}

// Stats returns the last metrics of an endpoint.
func (p *Pool) Stats(ref Ref) (s Stats, inFlight int) {
	if e := p.at(ref); e != nil {
		return e.stats, int(p.loads[ref.slot].flying)
	}
	return Stats{}, 0
}

// SetEndpoints replaces the endpoints. The state of endpoints that stay (same address and pod) is
// kept. Of two with the same address the first is used; those beyond MostEndpoints are ignored.
func (p *Pool) SetEndpoints(all []Endpoint) {
	before := p.live
	p.live = make([]int32, 0, len(all))
	kept := map[netip.AddrPort]bool{}
	for i := range all {
		e := &all[i]
		if !e.Address.IsValid() || kept[e.Address] || len(p.live) == MostEndpoints {
			continue
		}
		kept[e.Address] = true
		slot, ok := p.byAddr[e.Address]
		if ok && p.ends[slot].Pod != e.Pod { // another pod got the address
			p.leave(slot)
			ok = false
		}
		if !ok {
			slot = p.take()
			p.byAddr[e.Address] = slot
		}
		end := &p.ends[slot]
		end.Endpoint = *e
		end.fits = p.labels(e.Labels)
		p.loads[slot].serves = e.Ready && !e.Draining
		p.live = append(p.live, slot)
	}
	for _, slot := range before {
		if p.ends[slot].used && !kept[p.ends[slot].Address] {
			p.leave(slot)
		}
	}
	clear(p.session)
	p.ready = 0
	for _, slot := range p.live {
		p.session[p.ends[slot].Session()] = slot
		if p.loads[slot].serves {
			p.ready++
		}
		p.resize(slot)
	}
}

// take returns a slot for a new endpoint.
func (p *Pool) take() int32 {
	var slot int32
	if n := len(p.free); n > 0 {
		slot, p.free = p.free[n-1], p.free[:n-1]
	} else {
		slot = int32(len(p.ends)) //nolint:gosec // at most twice MostEndpoints
		p.ends = append(p.ends, end{})
		p.loads = append(p.loads, load{})
		p.turns = append(p.turns, 0)
		p.index.grow(len(p.ends))
		if p.blocks != nil {
			p.blocks.grow(len(p.ends))
		}
		p.work.grow(len(p.ends))
	}
	gen := p.ends[slot].gen + 1
	if gen == 0 {
		gen = 1
	}
	p.ends[slot] = end{gen: gen, used: true}
	p.loads[slot], p.turns[slot] = load{}, 0
	return slot
}

// leave removes an endpoint.
func (p *Pool) leave(slot int32) {
	p.index.drop(int(slot))
	if p.blocks != nil {
		p.blocks.drop(int(slot))
	}
	if p.byAddr[p.ends[slot].Address] == slot {
		delete(p.byAddr, p.ends[slot].Address)
	}
	p.ends[slot] = end{gen: p.ends[slot].gen}
	p.loads[slot] = load{}
	p.free = append(p.free, slot)
}

// resize sets the capacity of the index for an endpoint.
func (p *Pool) resize(slot int32) {
	c := &p.config.prefix
	capacity := c.LRUCapacityPerServer
	if blocks := p.ends[slot].stats.Blocks; c.AutoTune && blocks > 0 {
		capacity = min(blocks, mostCapacity)
		if size := p.ends[slot].stats.BlockTokens; size > 0 && size < leastBlock { // the index has larger blocks
			capacity = max(capacity*size/leastBlock, 1)
		}
	}
	p.index.resize(int(slot), min(capacity, max(mostPairs/max(len(p.live), 1), 1)))
}

// Hasher returns the hasher of prompts.
func (p *Pool) Hasher() Hasher { return p.config.prefix.hasher(p.block) }

// SetPace sets the current scrape interval; metrics are not stale before the next scrape is due.
func (p *Pool) SetPace(every time.Duration) { p.pace = every }

// Scraping records that a scrape of an endpoint begins.
func (p *Pool) Scraping(ref Ref, now time.Time) {
	if e := p.at(ref); e != nil {
		e.begun, e.sinceIt, e.ownIt = now.UnixNano(), 0, p.loads[ref.slot].flying
	}
}

// Observe records the result of a scrape. Scraping must have been called with Stats.At.
func (p *Pool) Observe(ref Ref, s Stats) {
	e := p.at(ref)
	if e == nil {
		return
	}
	l := &p.loads[ref.slot]
	at := s.At.UnixNano()
	if at < l.scraped {
		return // the result is older than another one
	}
	if e.begun == at { // else a later scrape has begun, whose result will follow
		l.since = e.sinceIt
	}
	l.scraped = at
	l.waiting, l.running = small(s.Waiting), small(s.Running)
	if e.begun == at {
		l.foreign = min(l.waiting, max(l.waiting+l.running-e.ownIt, 0))
	}
	l.cache = min(max(s.CacheUse, 0), 1)
	l.slots = small(s.MaxAdapters)
	if l.waiting > 0 {
		l.fits = l.running
	}
	p.forgetNames()
	resize := e.stats.Blocks != s.Blocks || e.stats.BlockTokens != s.BlockTokens
	e.active, e.queued = p.adapters(e.active[:0], s.Active), p.adapters(e.queued[:0], s.Queued)
	l.loaded = small(len(e.active) + len(e.queued))
	e.stats = s
	if resize {
		p.resize(ref.slot)
		if s.BlockTokens > 0 {
			p.block = s.BlockTokens
		}
	}
}

// small limits a number to the plausible range for requests and adapters.
func small(n int) int32 { return int32(min(max(n, 0), 1<<24)) } //nolint:gosec // limited

// adapters returns the numbers of adapter names.
func (p *Pool) adapters(out []int32, names []string) []int32 {
	for _, name := range names {
		n, ok := p.names[name]
		if !ok {
			if len(p.names) >= mostAdapters {
				continue
			}
			n = int32(len(p.names)) //nolint:gosec // at most mostAdapters
			p.names[name] = n
		}
		if len(out) == mostPerServer {
			break
		}
		out = append(out, n)
	}
	return out
}

// forgetNames removes the names of adapters that no server has any more, when there is hardly room for others: a server
// may report others each time. If most names are in use, it does so now and then only.
func (p *Pool) forgetNames() {
	if len(p.names) <= mostAdapters-2*mostPerServer {
		return
	}
	if p.crowded++; p.crowded%64 != 1 {
		return
	}
	number := map[int32]int32{}
	for _, slot := range p.live {
		for _, all := range [][]int32{p.ends[slot].active, p.ends[slot].queued} {
			for i, old := range all {
				if _, ok := number[old]; !ok {
					number[old] = int32(len(number)) //nolint:gosec // at most mostAdapters
				}
				all[i] = number[old]
			}
		}
	}
	for name, old := range p.names { // any order: each by itself
		if now, used := number[old]; used {
			p.names[name] = now
		} else {
			delete(p.names, name)
		}
	}
	if len(p.names) <= mostAdapters/2 {
		p.crowded = 0
	}
}

// Sent records that a request is sent to an endpoint now.
func (p *Pool) Sent(ref Ref, r *Request, now time.Time) Flight {
	f := Flight{ref: ref, tokens: r.tokens(), sent: now}
	e := p.at(ref)
	if e == nil {
		return f
	}
	l := &p.loads[ref.slot]
	f.uncached = f.tokens
	if n := len(r.Prefix); n > 0 {
		lengths := p.work.lengths[:len(p.ends)]
		longest := p.known(r, lengths, p.work.exact, now)
		f.uncached = f.tokens - f.tokens*int64(lengths[ref.slot])/int64(n)
		if longest == 0 {
			p.colds++
			e.cold = p.colds
		}
		p.index.use(int(ref.slot), r.Prefix)
	}
	if p.blocks != nil && len(r.Blocks) > 0 {
		p.blocks.guess(int(ref.slot), r.Blocks, now)
	}
	f.ahead, f.busy = l.tokens, int(l.flying)
	l.tokens += f.uncached
	l.flying++
	l.unbegun++
	l.since++
	e.sinceIt++
	e.ownIt++
	p.turn++
	p.turns[ref.slot] = p.turn
	return f
}

// FirstToken records the first byte of a response. Later calls do nothing.
func (p *Pool) FirstToken(f *Flight, now time.Time) {
	if f.over || !f.first.IsZero() {
		return
	}
	f.first = now
	e := p.at(f.ref)
	if e == nil {
		return
	}
	p.loads[f.ref.slot].tokens -= f.uncached
	p.loads[f.ref.slot].unbegun--
	took := now.Sub(f.sent).Seconds()
	e.latency.first.add(float64(f.ahead+f.uncached), took)
	p.all.first.add(float64(f.ahead+f.uncached), took)
}

// Ended records the end of a request. tokens is the length of the answer, 0: not known. Later calls do
// nothing.
func (p *Pool) Ended(f *Flight, how Outcome, tokens int, now time.Time) {
	if f.over {
		return
	}
	f.over = true
	e := p.at(f.ref)
	if e == nil {
		return
	}
	l := &p.loads[f.ref.slot]
	if f.first.IsZero() {
		l.tokens -= f.uncached
		l.unbegun--
	}
	l.flying--
	if at := f.sent.UnixNano(); at >= l.scraped && l.since > 0 {
		l.since--
	}
	if at := f.sent.UnixNano(); at >= e.begun && e.sinceIt > 0 {
		e.sinceIt--
	}
	if how == Answered && tokens > 1 && !f.first.IsZero() {
		per := now.Sub(f.first).Seconds() / float64(tokens-1)
		e.latency.each.add(float64(f.busy), per)
		p.all.each.add(float64(f.busy), per)
	}
}

// Figures are the sums of a pool for display.
type Figures struct {
	Ready, Endpoints       int
	Queue, Running, Cache  float64 // averages of the endpoints that were scraped
	Saturation             float64
	Held, HeldBytes, Pairs int
	Known                  int  // endpoints with metrics
	Stale                  int  // endpoints with stale metrics
	Waiting                int  // requests in the queues of servers
	Requests               int  // requests at servers, waiting and running
	Starting               bool // requests are held while there is no server, because an autoscaler is active
}

// Figures sums up the pool.
func (p *Pool) Figures(now time.Time) Figures {
	f := Figures{Ready: p.ready, Endpoints: len(p.live), Pairs: p.index.pairs}
	n := 0
	p.work.candidates(p, &Request{}, now)
	for _, slot := range p.live {
		l := &p.loads[slot]
		queue := int(p.work.queue(slot))
		f.Waiting += queue
		if l.scraped == 0 || now.Sub(time.Unix(0, l.scraped)) > staleLoad+p.pace {
			f.Stale++
			f.Requests += int(l.flying)
		} else {
			f.Requests += max(int(l.waiting+l.running+l.since), int(l.flying))
		}
		if l.scraped == 0 {
			continue
		}
		n++
		f.Queue += float64(l.waiting)
		f.Running += float64(l.running)
		f.Cache += l.cache
	}
	if n > 0 {
		f.Queue, f.Running, f.Cache = f.Queue/float64(n), f.Running/float64(n), f.Cache/float64(n)
	}
	f.Known, f.Starting = n, p.starting(now)
	f.Saturation = p.config.saturation.of(&p.work)
	if p.flow != nil {
		f.Held, f.HeldBytes = p.flow.held, int(p.flow.bytes)
	}
	return f
}

// InSubset reports whether a request may be sent to an address.
func InSubset(subset []netip.AddrPort, a netip.AddrPort) bool {
	return slices.ContainsFunc(subset, func(s netip.AddrPort) bool {
		return s.Addr() == a.Addr() && (s.Port() == 0 || s.Port() == a.Port())
	})
}
