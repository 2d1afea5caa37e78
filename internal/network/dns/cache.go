package dns

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/miekg/dns"

	core "carob/internal/core/netplan/dns"
)

// maxCacheBytes limits the memory of one cache: clients decide which names are queried.
const maxCacheBytes = 32 << 20

// noSOATTL is how long a negative answer without a SOA record is cached at most.
const noSOATTL = 5 * time.Second

// answerCache keeps answers of other servers. Its methods may be called from many goroutines.
type answerCache struct {
	cfg *core.Cache
	now func() time.Time
	m   *metrics

	mu      sync.Mutex
	entries map[string]*entry
	bytes   int
	counts  [2]int // by kind
}

// Kinds of answers.
const (
	success = iota
	denial
)

// entry is one answer, in wire form without an OPT record.
type entry struct {
	wire       []byte
	ttls       []int // where its TTLs are
	kind       int
	stored     time.Time
	ttl        time.Duration
	hits       int
	lastHit    time.Time
	refreshing bool // it is being refreshed
}

func newCache(cfg *core.Cache, now func() time.Time, m *metrics) *answerCache {
	return &answerCache{cfg: cfg, now: now, m: m, entries: map[string]*entry{}}
}

// keyOf appends the key of a question: two clients share an answer only if their questions are equal. A server that is
// not asked for recursion (rd) may know nothing of a name that it would find.
func keyOf(dst []byte, lower []byte, typ, class uint16, rd, do, cd bool) []byte {
	flags := byte(0)
	for i, on := range []bool{do, cd, rd} {
		if on {
			flags |= 1 << i
		}
	}
	dst = append(dst, lower...)
	return append(dst, byte(typ>>8), byte(typ), byte(class>>8), byte(class), flags)
}

// hit is the result of a cache lookup.
type hit struct {
	kind    int
	wire    []byte
	ttls    []int
	age     uint32 // seconds
	stale   bool
	refresh bool // the caller must query again
}

// get looks for an answer that is valid, or stale if the configuration allows it.
func (c *answerCache) get(key []byte) (hit, bool) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[string(key)]
	if e == nil {
		return hit{}, false
	}
	age := now.Sub(e.stored)
	if age >= e.ttl {
		if age >= e.ttl+c.cfg.ServeStale {
			c.remove(string(key), e)
			return hit{}, false
		}
		h := hit{kind: e.kind, wire: e.wire, ttls: e.ttls, stale: true}
		return h, true
	}
	h := hit{kind: e.kind, wire: e.wire, ttls: e.ttls, age: uint32(age / time.Second)}
	if c.cfg.Prefetch > 0 {
		if now.Sub(e.lastHit) > c.cfg.PrefetchWithin {
			e.hits = 0
		}
		e.hits++
		e.lastHit = now
		left := e.ttl - age
		if e.hits >= c.cfg.Prefetch && !e.refreshing &&
			(left <= e.ttl*time.Duration(c.cfg.PrefetchPercent)/100 || left <= time.Second) {
			e.refreshing, h.refresh = true, true
		}
	}
	return h, true
}

// count is the number of answers of each kind.
func (c *answerCache) count() (successes, denials int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[success], c.counts[denial]
}

// claim reports whether the caller must refresh a stale answer.
func (c *answerCache) claim(key []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[string(key)]
	if e == nil || e.refreshing {
		return false
	}
	e.refreshing = true
	return true
}

// release ends a claim.
func (c *answerCache) release(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil {
		e.refreshing = false
	}
}

func (c *answerCache) remove(key string, e *entry) {
	delete(c.entries, key)
	c.bytes -= size(key, e)
	c.counts[e.kind]--
}

// size is the memory of an entry, with what the map and the allocator add.
func size(key string, e *entry) int { return len(key) + len(e.wire) + 8*len(e.ttls) + 256 }

// put stores an answer; one that must not be cached is ignored.
func (c *answerCache) put(key string, m *dns.Msg) {
	kind, ttl := c.lifetime(m)
	limits := c.cfg.Success
	if kind == denial {
		limits = c.cfg.Denial
	}
	if ttl <= 0 || limits.Capacity == 0 || m.Truncated {
		return
	}
	wire, ttls, ok := pack(m)
	if !ok {
		return
	}
	e := &entry{wire: wire, ttls: ttls, kind: kind, stored: c.now(), ttl: ttl}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.entries[key]; old != nil {
		e.hits, e.lastHit = old.hits, old.lastHit
		c.remove(key, old)
	}
	c.entries[key] = e
	c.bytes += size(key, e)
	c.counts[kind]++
	for k, o := range c.entries { // the order of a map is random
		if c.bytes <= maxCacheBytes && c.counts[kind] <= limits.Capacity {
			break
		}
		if k != key && (o.kind == kind || c.bytes > maxCacheBytes) {
			c.remove(k, o)
			c.m.evicted(o.kind)
		}
	}
}

// lifetime is how long an answer is valid, as in CoreDNS.
func (c *answerCache) lifetime(m *dns.Msg) (kind int, ttl time.Duration) {
	least := func(list ...[]dns.RR) (least time.Duration, some bool) {
		for _, rrs := range list {
			for _, rr := range rrs {
				d := time.Duration(rr.Header().Ttl) * time.Second
				if soa, ok := rr.(*dns.SOA); ok && kind == denial {
					d = min(d, time.Duration(soa.Minttl)*time.Second)
				}
				if rr.Header().Rrtype != dns.TypeOPT && (!some || d < least) {
					least, some = d, true
				}
			}
		}
		return least, some
	}
	switch {
	case m.Rcode == dns.RcodeSuccess && len(m.Answer) > 0:
		ttl, _ = least(m.Answer, m.Ns, m.Extra)
		return success, min(max(ttl, c.cfg.Success.Min), c.cfg.Success.TTL)
	case m.Rcode == dns.RcodeServerFailure:
		return denial, c.cfg.ServFail
	case m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
		return denial, 0
	}
	kind = denial
	ttl, some := least(m.Ns)
	if !some {
		return denial, min(noSOATTL, c.cfg.Denial.TTL)
	}
	return denial, min(max(ttl, c.cfg.Denial.Min), c.cfg.Denial.TTL)
}

// pack makes the wire form of an answer, with the question's own name first.
func pack(m *dns.Msg) (wire []byte, ttls []int, ok bool) {
	m = m.Copy()
	m.Extra = withoutOPT(m.Extra)
	m.Compress = true
	wire, err := m.Pack()
	if err != nil || len(wire) > core.MaxMessage {
		return nil, nil, false
	}
	at, ok := skipName(wire, headerSize)
	if !ok {
		return nil, nil, false
	}
	at += 4
	for range len(m.Answer) + len(m.Ns) + len(m.Extra) {
		if at, ok = skipName(wire, at); !ok || at+10 > len(wire) {
			return nil, nil, false
		}
		ttls = append(ttls, at+4)
		at += 10 + int(binary.BigEndian.Uint16(wire[at+8:]))
	}
	return wire, ttls, at == len(wire)
}

func withoutOPT(list []dns.RR) []dns.RR {
	var out []dns.RR
	for _, rr := range list {
		if rr.Header().Rrtype != dns.TypeOPT {
			out = append(out, rr)
		}
	}
	return out
}

const headerSize = 12

func skipName(wire []byte, at int) (int, bool) {
	for at < len(wire) {
		switch c := int(wire[at]); {
		case c == 0:
			return at + 1, true
		case c&0xc0 == 0xc0:
			return at + 2, at+2 <= len(wire)
		case c > 63:
			return 0, false
		default:
			at += 1 + c
		}
	}
	return 0, false
}

// reply writes a cached answer for a client, if it fits.
func (h *hit) reply(dst []byte, q *core.Query, staleTTL uint32, udp bool) ([]byte, bool) {
	limit := core.MaxMessage
	if udp {
		limit = int(q.UDPSize)
	}
	room := len(h.wire)
	if q.EDNS {
		room += 11
	}
	if room > limit {
		return nil, false
	}
	out := append(dst[:0], h.wire...)
	binary.BigEndian.PutUint16(out, q.ID)
	out[2] &^= 1
	out[3] &^= 0x10
	if q.Recursion {
		out[2] |= 1
	}
	if q.Checking {
		out[3] |= 0x10
	}
	copy(out[headerSize:], q.Name())
	for _, at := range h.ttls {
		ttl := binary.BigEndian.Uint32(out[at:])
		switch {
		case h.stale:
			ttl = staleTTL
		case ttl > h.age:
			ttl -= h.age
		default:
			ttl = 0
		}
		binary.BigEndian.PutUint32(out[at:], ttl)
	}
	if q.EDNS {
		do := byte(0)
		if q.DO {
			do = 0x80
		}
		out = append(out, 0, 0, 41, 0x10, 0, 0, 0, do, 0, 0, 0)
		binary.BigEndian.PutUint16(out[10:], binary.BigEndian.Uint16(out[10:])+1)
	}
	return out, true
}
