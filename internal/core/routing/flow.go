package routing

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// Ticket identifies a held request. 0 is none.
type Ticket uint64

// queues holds the held requests: bands by priority, in each band flows by fairness ID, in each flow requests in their
// order. Higher bands go first; with round robin the flows of a band take turns.
type queues struct {
	config *flowConfig
	bands  []*band // by priority, highest first; only those in use
	held   int
	bytes  int64
	last   Ticket
	spots  map[Ticket]spot
	due    dueHeap
}

type spot struct {
	band *band
	flow *flowQueue
}

type band struct {
	bandConfig
	flows  []*flowQueue // those with requests, in the order of their turns
	byName map[string]*flowQueue
	held   int
	bytes  int64
	next   int // index of the flow whose turn it is
}

type flowQueue struct {
	name  string
	items []*item // sorted
}

type item struct {
	ticket  Ticket
	key     int64 // of the order; smaller goes first
	expires int64 // Unix nanoseconds
	request Request
}

// mostBands is the maximum number of priorities that wait at once: a client may choose any number.
const mostBands = 256

// setFlow applies the configuration. Held requests stay in their bands.
func (p *Pool) setFlow() {
	f := p.config.flow
	switch {
	case f == nil && p.flow != nil && p.flow.held > 0: // held requests continue as before
	case f == nil:
		p.flow = nil
	case p.flow == nil:
		p.flow = &queues{config: f, spots: map[Ticket]spot{}}
	default:
		p.flow.config = f
		for _, b := range p.flow.bands {
			b.bandConfig = f.band(b.priority)
		}
	}
}

// band returns the configuration of a priority.
func (f *flowConfig) band(priority int) bandConfig {
	for _, b := range f.bands {
		if b.priority == priority {
			return b
		}
	}
	b := f.other
	if priority < 0 {
		b = f.negative
	}
	b.priority = priority
	return b
}

// find returns the band of a priority; nil: it does not exist.
func (q *queues) find(priority int) *band {
	i, ok := slices.BinarySearchFunc(q.bands, priority, byPriority)
	if !ok {
		return nil
	}
	return q.bands[i]
}

func byPriority(b *band, priority int) int { return cmp.Compare(priority, b.priority) }

// blocks reports whether a request of a priority must wait behind others: it must not overtake
// those of its own priority or of a higher one.
func (q *queues) blocks(priority int) bool {
	for _, b := range q.bands {
		if b.priority < priority {
			return false
		}
		if b.held > 0 {
			return true
		}
	}
	return false
}

// full returns why a request cannot be held; empty: it can.
func (q *queues) full(r *Request) Reason {
	size := int64(max(r.Bytes, 0))
	c := q.config
	if c.mostRequests > 0 && int64(q.held) >= c.mostRequests || c.mostBytes > 0 && q.bytes+size > c.mostBytes {
		return Saturated
	}
	b := q.find(r.Priority)
	if b == nil {
		if len(q.bands) >= mostBands {
			q.clean()
		}
		if limits := c.band(r.Priority); len(q.bands) >= mostBands || limits.mostBytes > 0 && size > limits.mostBytes {
			return Saturated
		}
		return ""
	}
	if b.mostRequests > 0 && int64(b.held) >= b.mostRequests || b.mostBytes > 0 && b.bytes+size > b.mostBytes {
		return Saturated
	}
	return ""
}

// clean removes bands without requests.
func (q *queues) clean() {
	q.bands = slices.DeleteFunc(q.bands, func(b *band) bool { return b.held == 0 })
}

// Enqueue holds a request for which Decide returned Hold, until Next or Expire returns its ticket or Cancel removes
// it. It keeps the request, not the slices in it that the caller may change later.
func (p *Pool) Enqueue(r *Request, now time.Time) Ticket {
	if p.flow == nil { // without flow control, for the first server
		p.flow = &queues{config: p.config.start, spots: map[Ticket]spot{}}
	}
	q := p.flow
	i, ok := slices.BinarySearchFunc(q.bands, r.Priority, byPriority)
	if !ok {
		b := &band{bandConfig: q.config.band(r.Priority), byName: map[string]*flowQueue{}}
		q.bands = slices.Insert(q.bands, i, b)
	}
	b := q.bands[i]
	name := ""
	if b.fair {
		if name = r.FairnessID; name == "" {
			name = DefaultFairnessID
		}
	}
	f := b.byName[name]
	if f == nil {
		f = &flowQueue{name: name}
		b.byName[name] = f
		// A new flow is served after all others: at the end of this turn.
		b.flows = slices.Insert(b.flows, b.next, f)
		b.next++
	}
	q.last++
	ttl := q.config.ttl
	if p.ready == 0 {
		ttl = q.config.empty
	}
	it := &item{ticket: q.last, request: *r, expires: now.Add(ttl).UnixNano()}
	if !r.Deadline.IsZero() {
		it.expires = min(it.expires, r.Deadline.UnixNano())
	}
	switch received := cmp.Or(r.Received.UnixNano(), now.UnixNano()); b.order {
	case arrival:
		it.key = now.UnixNano()
	case earliestDeadline:
		it.key = it.expires
	case firstToken:
		if it.key = it.expires; r.TTFT > 0 { // without a requested time, the expiry time is the key
			it.key = received + int64(r.TTFT)
		}
	}
	at, _ := slices.BinarySearchFunc(f.items, it, func(a, b *item) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.ticket, b.ticket))
	})
	f.items = slices.Insert(f.items, at, it)
	q.spots[it.ticket] = spot{b, f}
	if len(q.due) > 2*len(q.spots)+64 { // most of the entries have continued or were cancelled
		q.due = slices.DeleteFunc(q.due, func(d due) bool { _, ok := q.spots[d.ticket]; return !ok })
		heap.Init(&q.due)
	}
	heap.Push(&q.due, due{it.expires, it.ticket})
	size := int64(max(r.Bytes, 0))
	b.held, b.bytes, q.held, q.bytes = b.held+1, b.bytes+size, q.held+1, q.bytes+size
	return it.ticket
}

// take removes the item at i of a flow.
func (q *queues) take(b *band, f *flowQueue, i int) *item {
	it := f.items[i]
	f.items = slices.Delete(f.items, i, i+1)
	size := int64(max(it.request.Bytes, 0))
	b.held, b.bytes, q.held, q.bytes = b.held-1, b.bytes-size, q.held-1, q.bytes-size
	delete(q.spots, it.ticket)
	if len(f.items) == 0 { // a flow without requests is removed
		at := slices.Index(b.flows, f)
		b.flows = slices.Delete(b.flows, at, at+1)
		if at < b.next {
			b.next--
		}
		delete(b.byName, f.name)
	}
	return it
}

// Next returns the next request that continues, with its decision (Serve, or Refuse if no
// endpoint can serve it). It returns 0 if none can: call it again after the pool has changed.
func (p *Pool) Next(now time.Time) (Ticket, Decision) {
	q := p.flow
	if q == nil || q.held == 0 {
		return 0, Decision{}
	}
	v := &p.work
	v.candidates(p, &Request{}, now)
	v.strict = true // many are waiting: they must not all continue between two scrapes
	// Without flow control, held requests waited for the first server, and continue like new ones.
	flow := p.config.flow != nil
	if len(v.at) == 0 || flow && p.config.saturation.full(v) {
		return 0, Decision{}
	}
	for _, b := range q.bands {
		if b.held == 0 {
			continue
		}
		if b.next >= len(b.flows) {
			b.next = 0
		}
		f := b.flows[b.next]
		if len(f.items) > 1 {
			b.next++ // if the flow became empty, the others have already moved up
		}
		it := q.take(b, f, 0)
		v.candidates(p, &it.request, now)
		if len(v.at) == 0 {
			return it.ticket, refuse(NoEndpoints)
		}
		if !flow && it.request.Priority < 0 && p.config.saturation.full(v) {
			return it.ticket, refuse(Saturated)
		}
		return it.ticket, p.choose(v)
	}
	return 0, Decision{}
}

// Cancel removes a held request; false: it is no longer held.
func (p *Pool) Cancel(t Ticket) bool {
	if p.flow == nil {
		return false
	}
	s, ok := p.flow.spots[t]
	if !ok {
		return false
	}
	i := slices.IndexFunc(s.flow.items, func(it *item) bool { return it.ticket == t })
	p.flow.take(s.band, s.flow, i)
	return true
}

// Expire removes a request that waited too long: refused, as Expired if the pool has endpoints, else as NoEndpoints. It
// returns 0 when there is none; next is when the next one expires, zero: none is held.
func (p *Pool) Expire(now time.Time) (t Ticket, why Reason, next time.Time) {
	q := p.flow
	if q == nil {
		return 0, "", next
	}
	for len(q.due) > 0 {
		d := q.due[0]
		if _, ok := q.spots[d.ticket]; ok && d.expires > now.UnixNano() {
			return 0, "", time.Unix(0, d.expires)
		}
		heap.Pop(&q.due)
		if !p.Cancel(d.ticket) {
			continue // it has continued
		}
		if p.ready == 0 {
			return d.ticket, NoEndpoints, next
		}
		return d.ticket, Expired, next
	}
	return 0, "", next
}

// due is the expiry of a request.
type due struct {
	expires int64
	ticket  Ticket
}

type dueHeap []due

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].expires < h[j].expires }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(due)) } //nolint:forcetypeassert // only due is pushed
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// Held returns the number of held requests.
func (p *Pool) Held() int {
	if p.flow == nil {
		return 0
	}
	return p.flow.held
}
