package routing

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
)

// precise is a configuration with precise-prefix-cache-scorer alone.
func precise(parameters string) string {
	return `{` + head + `, "plugins": [{"type": "precise-prefix-cache-scorer", "parameters": {` + parameters + `}}]}`
}

func precisePool(t testing.TB, n int, parameters string) *Pool {
	t.Helper()
	c, err := ParseConfig([]byte(precise(parameters)))
	if err != nil {
		t.Fatal(err)
	}
	p := pool(c, n)
	for _, ref := range p.Refs() {
		p.Following(ref)
	}
	return p
}

// The parameters are those of llm-d, and so are the defaults.
func TestPreciseConfig(t *testing.T) {
	c, err := ParseConfig([]byte(precise("")))
	if err != nil || *c.Precise() != (Precise{Topic: "kv@", Port: 5557, Keep: 2 * time.Second, Fast: 1, Slow: 0.8}) {
		t.Errorf("%+v, %v", c.Precise(), err)
	}
	c, err = ParseConfig([]byte(precise(`"tokenProcessorConfig": {"blockSizeTokens": 64, "hashSeed": "42"},
		"indexerConfig": {"tokenizersPoolConfig": {"modelName": "m", "hf": {}}, "kvBlockIndexConfig": {"enableMetrics": true,
			"inMemoryConfig": {"size": 100}}, "kvCacheBackendConfigs": [{"name": "cpu", "weight": 0.5}]},
		"kvEventsConfig": {"topicFilter": "kv@x", "concurrency": 4, "podDiscoveryConfig": {"socketPort": 5556}},
		"speculativeIndexing": false`)))
	if err != nil || *c.Precise() != (Precise{Topic: "kv@x", Port: 5556, BlockTokens: 64, Fast: 1, Slow: 0.5}) {
		t.Errorf("%+v, %v", c.Precise(), err)
	}
	for length, ok := range map[int]bool{254: true, 255: false} {
		text := precise(fmt.Sprintf(`"kvEventsConfig": {"topicFilter": %q}`, strings.Repeat("x", length)))
		if _, err := ParseConfig([]byte(text)); (err == nil) != ok {
			t.Errorf("a topic of %d bytes: %v", length, err)
		}
	}
	if DefaultConfig().Precise() != nil {
		t.Error("KV events are followed without a configuration")
	}
}

// twinServer is a simple model of a model server's cache.
type twinServer struct {
	blocks map[uint64]*twinBlock // by its own hash
	next   uint64
}

type twinBlock struct {
	path  string // model, salt, and all tokens up to its end
	tiers [2]bool
}

func pathOf(model, salt string, tokens []uint32) string { return fmt.Sprint(model, "/", salt, tokens) }

// twins are servers that publish the changes of their caches, with random failures of the transport.
type twins struct {
	*rand.Rand
	t       *testing.T
	p       *Pool
	servers []*twinServer
	size    int
}

func (w *twins) prompt() []uint32 {
	out := make([]uint32, 0, 10*w.size)
	for range (1 + w.IntN(10)) * w.size { // few different tokens: prompts share beginnings
		out = append(out, uint32(w.IntN(2)*w.IntN(2)*w.IntN(2)))
	}
	return out
}

// act changes a server's cache and publishes the event.
func (w *twins) act(slot int) {
	s, ref := w.servers[slot], w.p.Refs()[slot]
	model, salt := []string{"base", "adapter"}[w.IntN(2)], []string{"", "tenant"}[w.IntN(2)]
	number := s.next
	s.next++
	switch w.IntN(40) {
	case 0: // messages are missed
		s.next += 1 + w.Uint64N(3)
		number = s.next - 1
		clear(s.blocks)
	case 1: // the connection breaks
		w.p.Unfollowed(ref)
		w.p.Following(ref)
		clear(s.blocks)
	case 2: // an unreadable message
		w.p.Message(ref, number, false)
		clear(s.blocks)
		return
	case 3:
		w.p.Message(ref, number, true)
		w.p.Event(ref, "base", &BlockEvent{Kind: BlocksCleared})
		clear(s.blocks)
		return
	}
	w.p.Message(ref, number, true)
	if w.IntN(3) == 0 && len(s.blocks) > 0 {
		w.change(s, ref)
		return
	}
	tokens := w.prompt()
	e := &BlockEvent{Kind: BlocksStored, BlockTokens: w.size, Slow: w.IntN(4) == 0}
	from := 0
	for ; from < len(tokens)/w.size; from++ { // blocks that it has are not stored again
		own, ok := s.has(pathOf(model, salt, tokens[:(from+1)*w.size]))
		if !ok {
			break
		}
		e.Parent, e.HasParent = own, true
	}
	if model == "adapter" {
		e.Adapter = model
	}
	for i := from; i < len(tokens)/w.size; i++ {
		path := pathOf(model, salt, tokens[:(i+1)*w.size])
		own := xxhash.Sum64String(path)
		e.Blocks = append(e.Blocks, own)
		extra := BlockExtra{}
		if i == 0 {
			extra.Salt = salt
		}
		e.Extra = append(e.Extra, extra)
		if s.blocks[own] == nil {
			s.blocks[own] = &twinBlock{path: path}
		}
		s.blocks[own].tiers[toInt(e.Slow)] = true
	}
	e.Tokens = tokens[from*w.size:]
	if len(e.Blocks) == 0 {
		return
	}
	for range 1 + w.IntN(2) { // duplicates have no effect
		w.p.Event(ref, "base", e)
	}
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// change removes blocks, or copies them to another tier.
func (w *twins) change(s *twinServer, ref Ref) {
	var own []uint64
	for hash := range s.blocks {
		own = append(own, hash)
	}
	slices.Sort(own)
	hash := own[w.IntN(len(own))]
	e := &BlockEvent{Kind: BlocksStored, Blocks: []uint64{hash}, Slow: w.IntN(2) == 0}
	s.blocks[hash].tiers[toInt(e.Slow)] = true
	if w.IntN(3) > 0 {
		e.Kind = BlocksRemoved
		s.blocks[hash].tiers[toInt(e.Slow)] = false
		if s.blocks[hash].tiers == [2]bool{} {
			delete(s.blocks, hash)
		}
		other := &BlockEvent{Kind: BlocksRemoved, Blocks: e.Blocks, Slow: e.Slow, Group: 1} // another group of layers
		w.p.Event(ref, "base", other)
	}
	w.p.Event(ref, "base", e)
	w.p.Event(ref, "base", &BlockEvent{Kind: BlocksRemoved, Blocks: []uint64{1 << 60}}) // a block that it never had
	w.p.Event(ref, "base", &BlockEvent{Kind: BlocksStored, Blocks: []uint64{1 << 61}, Parent: 1 << 60, HasParent: true,
		BlockTokens: w.size, Tokens: make([]uint32, w.size)}) // with an unknown parent
}

func (s *twinServer) has(path string) (uint64, bool) {
	for own, b := range s.blocks { // any order: paths are unique
		if b.path == path {
			return own, true
		}
	}
	return 0, false
}

// check compares the pool's index with the caches of the servers.
func (w *twins) check(seed uint64, now time.Time) {
	model, salt, tokens := []string{"base", "adapter"}[w.IntN(2)], []string{"", "tenant"}[w.IntN(2)], w.prompt()
	h := TokenHasher{w.size}
	r := &Request{Model: model, Blocks: h.Hash(model, salt, tokens)}
	exact := make([]float64, len(w.servers))
	w.p.known(r, make([]int32, len(w.servers)), exact, now)
	for slot, s := range w.servers {
		sum := 0.0
		for i := range r.Blocks {
			own, ok := s.has(pathOf(model, salt, tokens[:(i+1)*w.size]))
			if !ok {
				break
			}
			if s.blocks[own].tiers[fast] {
				sum++
			} else {
				sum += 0.8
			}
		}
		if want := sum / float64(len(r.Blocks)); exact[slot]-want > 1e-9 || want-exact[slot] > 1e-9 {
			w.t.Fatalf("seed %d: server %d has %g of the prompt, the index has %g", seed, slot, want, exact[slot])
		}
		if got := w.p.CacheState(w.p.Refs()[slot]).Blocks; got != len(s.blocks) {
			w.t.Fatalf("seed %d: server %d has %d blocks, the index has %d", seed, slot, len(s.blocks), got)
		}
	}
}

// The index matches the events after random events, including duplicate and lost ones.
func TestBlockIndex(t *testing.T) {
	for seed := range uint64(40) {
		w := &twins{Rand: rand.New(rand.NewPCG(seed, 2)), t: t, size: 2}
		n := 1 + w.IntN(70)
		w.p = precisePool(t, n, `"speculativeIndexing": false`)
		for range n {
			w.servers = append(w.servers, &twinServer{blocks: map[uint64]*twinBlock{}})
		}
		for slot := range n { // the length of the blocks is known
			w.p.Message(w.p.Refs()[slot], 0, true)
			w.p.Event(w.p.Refs()[slot], "base", stored(1<<62, 2, []uint32{9, 9}))
			w.p.Event(w.p.Refs()[slot], "base", &BlockEvent{Kind: BlocksCleared})
			w.servers[slot].next = 1
		}
		for range 200 {
			w.act(w.IntN(min(n, 4)))
			w.check(seed, begin)
		}
		w.p.SetEndpoints(nil)
		if x := w.p.blocks; x.blocks != 0 || len(x.sets) != 0 || len(x.free)*planes*x.stride() != len(x.words) {
			t.Fatalf("seed %d: %d blocks and %d sets are left", seed, x.blocks, len(x.sets))
		}
	}
}

// stored is the event of a prompt's blocks.
func stored(own uint64, size int, tokens []uint32) *BlockEvent {
	e := &BlockEvent{Kind: BlocksStored, BlockTokens: size, Tokens: tokens}
	for range len(tokens) / size {
		e.Blocks = append(e.Blocks, own)
		own++
	}
	return e
}

func publish(p *Pool, i int, number uint64, all ...*BlockEvent) {
	ref := p.Refs()[i]
	p.Message(ref, number, true)
	for _, e := range all {
		p.Event(ref, "m", e)
	}
}

// A request goes to the server that has its prompt according to the events, not to the one it was sent to before;
// after the server has removed the blocks, it goes to the former one.
func TestPreciseScorer(t *testing.T) {
	p := precisePool(t, 3, "")
	text := make([]byte, 4096)
	tokens := make([]uint32, 64)
	prefix := p.Hasher().Hash(nil, "m", "", text)
	publish(p, 2, 0, stored(1, 16, tokens))
	publish(p, 0, 0, stored(1, 16, tokens[:16]))
	publish(p, 1, 0, &BlockEvent{Kind: BlocksCleared})
	r := &Request{Model: "m", Prefix: prefix, Blocks: p.TokenHasher().Hash("m", "", tokens), Random: 1}
	if len(r.Blocks) != 4 {
		t.Fatalf("%d blocks", len(r.Blocks))
	}
	p.Sent(p.Refs()[1], &Request{Model: "m", Prefix: prefix}, begin)
	if d := p.Decide(r, begin); p.Endpoint(d.Chosen[0]).Name.Name != "p2" || d.Score != 1 || d.Matched != len(prefix) {
		t.Errorf("%s %+v", p.Endpoint(d.Chosen[0]).Name, d)
	}
	publish(p, 2, 1, &BlockEvent{Kind: BlocksRemoved, Blocks: []uint64{1}})
	if d := p.Decide(r, begin); p.Endpoint(d.Chosen[0]).Name.Name != "p0" || d.Score != 0.25 {
		t.Errorf("%s %+v", p.Endpoint(d.Chosen[0]).Name, d)
	}
	// Without tokens, the index of sent prompts is used.
	if got := chosen(t, p, &Request{Model: "m", Prefix: prefix, Random: 1}, begin); got != "p1" {
		t.Error(got)
	}
	// Another model, or tenant, has other blocks.
	for _, other := range [][]uint64{p.TokenHasher().Hash("n", "", tokens), p.TokenHasher().Hash("m", "x", tokens)} {
		if d := p.Decide(&Request{Model: "m", Blocks: other, Random: 1}, begin); d.Score != 0 {
			t.Errorf("%+v", d)
		}
	}
}

// A server whose first messages were missed is trusted for the blocks in its events; it may have others, too.
func TestMissedEvents(t *testing.T) {
	p := precisePool(t, 2, "")
	text, tokens := make([]byte, 4096), make([]uint32, 64)
	prefix := p.Hasher().Hash(nil, "m", "", text)
	publish(p, 0, 7, stored(1, 16, tokens[:16]))
	publish(p, 1, 0, stored(1, 16, tokens[:32]))
	r := &Request{Model: "m", Prefix: prefix, Blocks: p.TokenHasher().Hash("m", "", tokens), Random: 1}
	if got := chosen(t, p, r, begin); got != "p1" {
		t.Error(got)
	}
	p.Sent(p.Refs()[0], &Request{Model: "m", Prefix: prefix}, begin) // without tokens: by sent prompts
	if got := chosen(t, p, r, begin); got != "p0" {
		t.Error(got)
	}
	if c := p.CacheState(p.Refs()[0]); c.Whole || c.Gaps != 0 || c.Blocks != 1 {
		t.Errorf("%+v", c)
	}
	publish(p, 1, 5)
	if c := p.CacheState(p.Refs()[1]); c.Whole || c.Gaps != 1 || c.Blocks != 0 {
		t.Errorf("after a gap: %+v", c)
	}
	publish(p, 1, 0, stored(1, 16, tokens[:32])) // it has restarted
	if c := p.CacheState(p.Refs()[1]); !c.Whole || c.Gaps != 2 || c.Blocks != 2 {
		t.Errorf("after a new start: %+v", c)
	}
	p.Unfollowed(p.Refs()[1])
	publish(p, 1, 1, stored(9, 16, tokens))
	if c := p.CacheState(p.Refs()[1]); c.Following || c.Blocks != 0 {
		t.Errorf("after the end of the connection: %+v", c)
	}
}

// A burst of one prompt stays together before the first event comes; the guess ends when it expires, or with the
// server.
func TestSpeculativeBlocks(t *testing.T) {
	p := precisePool(t, 8, "")
	for i := range 8 {
		publish(p, i, 0, stored(1, 16, make([]uint32, 16)), &BlockEvent{Kind: BlocksCleared})
	}
	tokens := slices.Repeat([]uint32{7}, 64)
	r := &Request{Model: "m", Blocks: p.TokenHasher().Hash("m", "", tokens), Random: 1}
	p.Sent(p.Refs()[5], r, begin)
	if d := p.Decide(r, begin.Add(time.Second)); p.Endpoint(d.Chosen[0]).Name.Name != "p5" || d.Score != 1 {
		t.Errorf("%+v", d)
	}
	p.Sent(p.Refs()[5], r, begin.Add(time.Second))
	if d := p.Decide(r, begin.Add(2900*time.Millisecond)); d.Score != 1 {
		t.Errorf("a renewed guess ends with the first: %+v", d)
	}
	if d := p.Decide(r, begin.Add(3*time.Second)); d.Score != 0 || len(p.blocks.sets) != 0 {
		t.Errorf("it does not end: %+v, %d sets", d, len(p.blocks.sets))
	}
	p.Sent(p.Refs()[5], r, begin.Add(4*time.Second))
	p.SetEndpoints(servers(5))
	d := p.Decide(r, begin.Add(4*time.Second))
	if d.Score != 0 || len(p.blocks.sets) != 0 || len(p.blocks.guesses) != 0 {
		t.Errorf("it outlives its server: %+v", d)
	}
}

// A server that reports endless blocks gets no more than its share of the index; others are not
// affected.
func TestBlockIndexIsBounded(t *testing.T) {
	p := precisePool(t, 2, "")
	p.blocks.most = 1000
	publish(p, 1, 0, stored(1, 16, make([]uint32, 64)))
	tokens := make([]uint32, 16*400)
	for i := range uint64(10) {
		tokens[0] = uint32(i)
		publish(p, 0, i, stored(1000*i, 16, tokens))
	}
	if c := p.CacheState(p.Refs()[0]); c.Blocks != 1000 || !c.Full {
		t.Errorf("%+v", c)
	}
	if c := p.CacheState(p.Refs()[1]); c.Blocks != 4 || c.Full {
		t.Errorf("%+v", c)
	}
	r := &Request{Model: "m", Random: 1, Blocks: p.TokenHasher().Hash("m", "", make([]uint32, 1<<21))}
	if len(r.Blocks) != MostTokens/16 {
		t.Errorf("%d blocks of a huge prompt", len(r.Blocks))
	}
	hashes := slices.Repeat(r.Blocks[:1], mostGuesses)
	p.blocks.guess(0, hashes, begin)
	p.blocks.guess(0, hashes[:1], begin)
	if n := len(p.blocks.expire); n != mostGuesses {
		t.Errorf("%d guesses", n)
	}
}

// A server whose blocks have another length cannot be compared; when the others are removed, its length is
// used.
func TestOtherBlockLength(t *testing.T) {
	p := precisePool(t, 2, "")
	tokens := make([]uint32, 64)
	publish(p, 0, 0, stored(1, 16, tokens))
	publish(p, 1, 0, stored(1, 32, tokens))
	if c := p.CacheState(p.Refs()[1]); c.Tokens != 32 || c.Wrong != 16 {
		t.Errorf("%+v", c)
	}
	r := &Request{Model: "m", Blocks: p.TokenHasher().Hash("m", "", tokens), Random: 1}
	if got := chosen(t, p, r, begin); got != "p0" {
		t.Error(got)
	}
	p.SetEndpoints(servers(2)[1:])
	if p.TokenHasher().Block() != 0 {
		t.Error("prompts can be compared")
	}
	publish(p, 0, 1, stored(5, 32, tokens))
	if c := p.CacheState(p.Refs()[0]); p.TokenHasher().Block() != 32 || c.Wrong != 0 {
		t.Errorf("%d %+v", p.TokenHasher().Block(), c)
	}
	// Blocks with a sliding window do not represent a prompt; a block with an image does not match
	// one of text.
	for _, e := range []*BlockEvent{{Window: true}, {Extra: []BlockExtra{{Other: 1}, {}}}} {
		q := precisePool(t, 1, "")
		s := stored(1, 32, tokens)
		s.Window, s.Extra = e.Window, e.Extra
		publish(q, 0, 0, stored(100, 32, slices.Repeat([]uint32{5}, 32)), s)
		r.Blocks = q.TokenHasher().Hash("m", "", tokens)
		if d := q.Decide(r, begin); d.Score != 0 {
			t.Errorf("%+v: %+v", e, d)
		}
	}
}

func BenchmarkBlockMatch(b *testing.B) {
	p := precisePool(b, 100, "")
	tokens := make([]uint32, 6000)
	for i := range 100 {
		publish(p, i, 0, stored(1, 16, tokens[:16*(1+3*i)]))
	}
	r := &Request{Model: "m", Blocks: p.TokenHasher().Hash("m", "", tokens), Random: 1}
	b.ReportAllocs()
	for b.Loop() {
		p.Decide(r, begin)
	}
}

// A server that had many blocks and clears them again and again, each time with one new block, costs no more than one
// that never had any: a cleared map would keep its memory, all of which the next clearing goes through.
func TestClearedBlocksLeaveNothing(t *testing.T) {
	p := precisePool(t, 1, "")
	tokens := make([]uint32, 16*1000)
	for i := range uint64(20) {
		tokens[0] = uint32(i)
		publish(p, 0, i, stored(1000*i, 16, tokens))
	}
	own := func() uintptr { return reflect.ValueOf(p.blocks.servers[0].blocks).Pointer() }
	for i, e := range []*BlockEvent{{Kind: BlocksCleared}, stored(1, 16, tokens[:16]), stored(1, 32, tokens[:32])} {
		before := own()
		publish(p, 0, uint64(20+i), e) //nolint:gosec // small
		if emptied := i != 1; emptied && own() == before {
			t.Errorf("event %d keeps the memory of the blocks", i)
		}
	}
	publish(p, 0, 99, &BlockEvent{Kind: BlocksRemoved}) // messages were missed
	if c := p.CacheState(p.Refs()[0]); c.Blocks != 0 || p.blocks.blocks != 0 || len(p.blocks.sets) != 0 {
		t.Errorf("%+v, %d blocks, %d sets", c, p.blocks.blocks, len(p.blocks.sets))
	}
}

// BenchmarkClearedBlocks: a message of a server that had a million blocks stores one and clears them.
func BenchmarkClearedBlocks(b *testing.B) {
	p := precisePool(b, 1, "")
	tokens := make([]uint32, 16*1000)
	for i := range uint64(1000) {
		tokens[0] = uint32(i)
		publish(p, 0, i, stored(1000*i, 16, tokens))
	}
	publish(p, 0, 1000, &BlockEvent{Kind: BlocksCleared})
	for n := uint64(1001); b.Loop(); n++ {
		publish(p, 0, n, stored(1, 16, tokens[:16]), &BlockEvent{Kind: BlocksCleared})
	}
}
