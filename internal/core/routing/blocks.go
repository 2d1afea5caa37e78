package routing

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

// BlockEventKind is the kind of an event about blocks of a KV cache.
type BlockEventKind uint8

// The events of a model server (KVEventBatch of vLLM).
const (
	BlocksStored BlockEventKind = iota + 1
	BlocksRemoved
	BlocksCleared // all of them
)

// BlockEvent is an event of a model server about blocks in its KV cache. It is not trusted: it changes only the state
// of this server.
type BlockEvent struct {
	Kind BlockEventKind
	// Blocks are the server's own hashes.
	Blocks []uint64
	// Parent is the server's hash of the block before the first one, if HasParent.
	Parent    uint64
	HasParent bool
	// Tokens are the tokens of the stored blocks, BlockTokens in each; none: known blocks moved to another tier.
	Tokens      []uint32
	BlockTokens int
	// Adapter is the name of the LoRA adapter; empty: the model of the server's topic.
	Adapter string
	// Extra is what else the blocks depend on, one for each block; nil: nothing.
	Extra []BlockExtra
	// Slow: the blocks are not in the memory of the GPU, but in the memory of the host or in slower
	// storage.
	Slow bool
	// Group of layers, in models with several kinds of them.
	Group int
	// Window: blocks of layers with a sliding window; they do not represent whole prompts.
	Window bool
}

// BlockExtra is what a block depends on beside its tokens: a salt (cache_salt of the request), or an input that
// cannot be compared with requests, such as an image.
type BlockExtra struct {
	Salt  string
	Other uint64 // 0: nothing
}

// mostKnown limits the blocks that are stored for all servers of a pool, from events: about 100 bytes each.
const mostKnown = 1 << 20

// The planes of a set: the servers that have a block in fast memory, in slow memory, and those that probably have it
// because a request with it was sent to them recently.
const (
	fast = iota
	slow
	probable
	planes
)

// blockIndex records which servers have which blocks in their KV cache, according to their events. Each server uses
// its own hashes; events also contain the tokens, from which the index computes the hashes to compare with requests.
type blockIndex struct {
	slots   int
	sets    map[uint64]int32 // hash → set
	words   []uint64         // the sets: planes times (slots+63)/64 words
	free    []int32
	servers []blockServer // by slot
	blocks  int           // of all servers
	most    int           // of one server
	size    int           // tokens of a block; 0: not known yet
	given   bool          // size is configured
	keep    time.Duration // how long a guess is valid; 0: no guesses

	guesses map[guess]int64 // valid until
	expire  []expiry        // in the order of their times
	first   int             // of expire
	alive   []uint64        // for match
}

type guess struct {
	hash uint64
	slot int32
}

type expiry struct {
	guess
	until int64
}

// mostGuesses limits the number of blocks that are guessed at a time.
const mostGuesses = 1 << 17

// blockServer is the state of one server from its events on the current connection.
type blockServer struct {
	following bool
	received  bool // an event has arrived on this connection
	whole     bool // no event was missed: the server has no other blocks
	full      bool // it has more blocks than the limit
	next      uint64
	gaps      int
	size      int // tokens of its blocks
	blocks    map[uint64]block
}

// block is a block of a server: the hash to compare with requests, and its tiers.
type block struct {
	hash  uint64
	group int32
	tiers uint8 // bit fast, bit slow
}

func newBlockIndex(size int, keep time.Duration) *blockIndex {
	return &blockIndex{sets: map[uint64]int32{}, guesses: map[guess]int64{}, most: mostKnown, size: size,
		given: size > 0, keep: keep}
}

func (x *blockIndex) stride() int { return (x.slots + 63) / 64 }

// grow resizes the sets for this many servers.
func (x *blockIndex) grow(slots int) {
	for len(x.servers) < slots {
		x.servers = append(x.servers, blockServer{})
	}
	if slots <= x.slots {
		return
	}
	old := x.stride()
	x.slots = max(64, 1<<bits.Len(uint(slots-1)))
	s := x.stride()
	if s == old {
		return
	}
	x.alive = make([]uint64, s)
	if old > 0 {
		words := make([]uint64, len(x.words)/old*s)
		for i := range len(x.words) / old {
			copy(words[i*s:], x.words[i*old:(i+1)*old])
		}
		x.words = words
	}
}

// set returns a plane of the servers that have a block; nil: none has it.
func (x *blockIndex) set(hash uint64) (i int, ok bool) {
	n, ok := x.sets[hash]
	return int(n) * x.stride() * planes, ok
}

func (x *blockIndex) mark(hash uint64, slot, plane int) {
	s := x.stride()
	n, ok := x.sets[hash]
	if !ok {
		if last := len(x.free) - 1; last >= 0 {
			n, x.free = x.free[last], x.free[:last]
		} else {
			n = int32(len(x.words) / (s * planes)) //nolint:gosec // at most mostKnown + mostGuesses
			x.words = append(x.words, make([]uint64, s*planes)...)
		}
		x.sets[hash] = n
	}
	x.words[(int(n)*planes+plane)*s+slot/64] |= 1 << (slot % 64)
}

func (x *blockIndex) clear(hash uint64, slot, plane int) {
	at, ok := x.set(hash)
	if !ok {
		return
	}
	s := x.stride()
	x.words[at+plane*s+slot/64] &^= 1 << (slot % 64)
	for _, word := range x.words[at : at+planes*s] {
		if word != 0 {
			return
		}
	}
	x.free = append(x.free, x.sets[hash])
	delete(x.sets, hash)
}

// begin starts a new connection to a server: its former state may be outdated.
func (x *blockIndex) begin(slot int) {
	gaps := x.servers[slot].gaps
	x.drop(slot)
	x.servers[slot] = blockServer{following: true, gaps: gaps, blocks: map[uint64]block{}}
}

// drop removes a server.
func (x *blockIndex) drop(slot int) {
	x.empty(slot)
	x.unguess(slot)
	x.servers[slot] = blockServer{}
}

// empty removes the blocks of a server, and the memory that they had: a map that is cleared keeps it, and going through
// it takes milliseconds, which a server could request with every few bytes.
func (x *blockIndex) empty(slot int) {
	v := &x.servers[slot]
	v.full = false
	if len(v.blocks) == 0 {
		return
	}
	for _, b := range v.blocks { // any order: all are removed
		for plane := fast; plane <= slow; plane++ {
			x.clear(b.hash, slot, plane)
		}
		x.blocks--
	}
	v.blocks = map[uint64]block{}
}

// number checks the sequence number of a server's next message. If messages were missed, or the server counts anew,
// all its blocks are removed from the index: it may have removed any of them.
func (x *blockIndex) number(slot int, n uint64) {
	v := &x.servers[slot]
	switch {
	case !v.received:
		v.whole = n == 0
	case n != v.next:
		x.empty(slot)
		v.gaps++
		v.whole = n == 0
	}
	v.received, v.next = true, n+1
}

// take applies an event.
func (x *blockIndex) take(slot int, model string, e *BlockEvent) {
	v := &x.servers[slot]
	switch e.Kind {
	case BlocksCleared:
		x.empty(slot)
		v.whole = true
	case BlocksRemoved:
		for _, own := range e.Blocks {
			x.remove(slot, own, e)
		}
	case BlocksStored:
		if e.Window {
			return
		}
		if len(e.Tokens) == 0 {
			for _, own := range e.Blocks { // known ones, in another tier
				if b, ok := v.blocks[own]; ok && int(b.group) == e.Group {
					x.put(slot, own, b, e.Slow)
				}
			}
			return
		}
		x.store(slot, model, e)
	}
}

func (x *blockIndex) store(slot int, model string, e *BlockEvent) {
	v := &x.servers[slot]
	if e.BlockTokens <= 0 || len(e.Blocks)*e.BlockTokens != len(e.Tokens) {
		return // blocks that are not full are not shared
	}
	if v.size != e.BlockTokens {
		x.empty(slot)
		v.size = e.BlockTokens
	}
	if !x.given && x.size != v.size && (x.size == 0 || !slices.ContainsFunc(x.servers, x.fits)) {
		x.size = v.size // the first one defines the size for all
	}
	if e.Adapter != "" {
		model = e.Adapter
	}
	var hash uint64
	if e.HasParent {
		parent, ok := v.blocks[e.Parent]
		if !ok {
			return // the parent is not known
		}
		hash = parent.hash
	} else {
		salt := ""
		if len(e.Extra) > 0 {
			salt = e.Extra[0].Salt
		}
		hash = seed(model, salt)
	}
	for i, own := range e.Blocks {
		hash = chain(hash, e.Tokens[i*e.BlockTokens:(i+1)*e.BlockTokens])
		if i < len(e.Extra) {
			if extra := e.Extra[i]; extra.Other != 0 || extra.Salt != "" && (i > 0 || e.HasParent) {
				hash = seed(string(binary.LittleEndian.AppendUint64(nil, hash^extra.Other)), extra.Salt)
			}
		}
		b, known := v.blocks[own]
		if known && b.hash != hash {
			x.forget(slot, own, b)
			known = false
		}
		if !known {
			if len(v.blocks) >= x.most || x.blocks >= mostKnown {
				v.full = true
				return // those after it would not be usable
			}
			b = block{hash: hash, group: int32(e.Group)} //nolint:gosec // limited by the reader
			x.blocks++
		}
		x.put(slot, own, b, e.Slow)
	}
}

// put records that a server has a block in a tier.
func (x *blockIndex) put(slot int, own uint64, b block, inSlow bool) {
	plane := fast
	if inSlow {
		plane = slow
	}
	b.tiers |= 1 << plane
	x.servers[slot].blocks[own] = b
	x.mark(b.hash, slot, plane)
}

func (x *blockIndex) remove(slot int, own uint64, e *BlockEvent) {
	v := &x.servers[slot]
	b, ok := v.blocks[own]
	if !ok || int(b.group) != e.Group {
		return
	}
	plane := fast
	if e.Slow {
		plane = slow
	}
	if b.tiers &^= 1 << plane; b.tiers == 0 {
		x.forget(slot, own, b)
		return
	}
	v.blocks[own] = b
	x.clear(b.hash, slot, plane)
}

// forget removes a block of a server.
func (x *blockIndex) forget(slot int, own uint64, b block) {
	delete(x.servers[slot].blocks, own)
	x.blocks--
	x.clear(b.hash, slot, fast)
	x.clear(b.hash, slot, slow)
}

// guess records that a server will have blocks soon, because a request with them was sent to it.
func (x *blockIndex) guess(slot int, hashes []uint64, now time.Time) {
	x.tick(now)
	if x.keep <= 0 || !x.servers[slot].following || len(x.expire)-x.first+len(hashes) > mostGuesses {
		return
	}
	until := now.Add(x.keep).UnixNano()
	for _, hash := range hashes {
		g := guess{hash, int32(slot)} //nolint:gosec // at most twice MostEndpoints
		x.guesses[g] = until
		x.expire = append(x.expire, expiry{g, until})
		x.mark(hash, slot, probable)
	}
}

// tick ends guesses that have expired. A renewed guess is in the list twice.
func (x *blockIndex) tick(now time.Time) {
	at := now.UnixNano()
	for ; x.first < len(x.expire) && x.expire[x.first].until <= at; x.first++ {
		e := x.expire[x.first]
		if x.guesses[e.guess] == e.until {
			delete(x.guesses, e.guess)
			x.clear(e.hash, int(e.slot), probable)
		}
	}
	switch {
	case x.first == len(x.expire):
		x.expire, x.first = x.expire[:0], 0
	case x.first > mostGuesses:
		x.expire = x.expire[:copy(x.expire, x.expire[x.first:])]
		x.first = 0
	}
}

// unguess ends all guesses about a server.
func (x *blockIndex) unguess(slot int) {
	kept := x.expire[:0]
	for _, e := range x.expire[x.first:] {
		if int(e.slot) != slot {
			kept = append(kept, e)
			continue
		}
		if _, ok := x.guesses[e.guess]; ok {
			delete(x.guesses, e.guess)
			x.clear(e.hash, slot, probable)
		}
	}
	x.expire, x.first = kept, 0
}

// fits reports whether the blocks of a server are as long as those of the requests.
func (x *blockIndex) fits(v blockServer) bool { return v.received && v.size == x.size && x.size > 0 }

// usable reports whether the state of a server is valid, including an empty one.
func (x *blockIndex) usable(slot int) bool {
	v := &x.servers[slot]
	return x.fits(*v) || v.received && v.whole && v.size == 0
}

// match writes for each server how many consecutive blocks of a prompt it has from the beginning, and how many of them
// are in slow memory only. Blocks may be missing in the middle, because servers remove blocks in any order.
func (x *blockIndex) match(hashes []uint64, lengths, behind []int32) {
	clear(lengths)
	clear(behind)
	s := x.stride()
	for i, hash := range hashes {
		at, ok := x.set(hash)
		if !ok {
			x.finish(i, lengths)
			return
		}
		set := x.words[at : at+planes*s]
		left := uint64(0)
		for w := range s {
			quick := set[fast*s+w] | set[probable*s+w]
			all := quick | set[slow*s+w]
			if i > 0 {
				all &= x.alive[w]
				report(x.alive[w]&^all, w, i, lengths)
			}
			for late := all &^ quick; late != 0; late &= late - 1 {
				if slot := w*64 + bits.TrailingZeros64(late); slot < len(behind) {
					behind[slot]++
				}
			}
			x.alive[w] = all
			left |= all
		}
		if left == 0 {
			return
		}
	}
	x.finish(len(hashes), lengths)
}

// finish writes the length of the servers that have all blocks so far.
func (x *blockIndex) finish(length int, lengths []int32) {
	if length == 0 {
		return
	}
	for w, word := range x.alive {
		report(word, w, length, lengths)
	}
}

func report(word uint64, w, length int, lengths []int32) {
	for ; word != 0; word &= word - 1 {
		if slot := w*64 + bits.TrailingZeros64(word); slot < len(lengths) {
			lengths[slot] = int32(length) //nolint:gosec // at most mostTokens
		}
	}
}

// seed begins a chain of hashes: prompts for another model, or with another salt, share nothing.
func seed(model, salt string) uint64 {
	var d xxhash.Digest
	var length [8]byte
	d.Reset()
	binary.LittleEndian.PutUint64(length[:], uint64(len(model)))
	_, _ = d.Write(length[:])
	_, _ = d.WriteString(model)
	_, _ = d.WriteString(salt)
	return d.Sum64()
}

// chain returns the hash of a block: of its tokens, and of all before them.
func chain(before uint64, tokens []uint32) uint64 {
	var d xxhash.Digest
	var word [8]byte
	d.Reset()
	binary.LittleEndian.PutUint64(word[:], before)
	_, _ = d.Write(word[:])
	for _, t := range tokens {
		binary.LittleEndian.PutUint32(word[:4], t)
		_, _ = d.Write(word[:4])
	}
	return d.Sum64()
}

// MostTokens limits the compared part of a prompt, in tokens.
const MostTokens = promptTokens

// TokenHasher makes the hashes of a prompt's blocks from its tokens. It may be used while the Pool it came from
// changes.
type TokenHasher struct{ block int }

// Block is the length of a block in tokens; 0: no server has reported it yet, and there is nothing to compare
// with.
func (h TokenHasher) Block() int { return h.block }

// Hash returns the hashes of the full blocks of a prompt. The model is the name that servers publish: Request.Target,
// or Request.Model without one.
func (h TokenHasher) Hash(model, salt string, tokens []uint32) []uint64 {
	if h.block <= 0 {
		return nil
	}
	tokens = tokens[:min(len(tokens), MostTokens, mostBlocks*h.block)]
	out := make([]uint64, 0, len(tokens)/h.block)
	hash := seed(model, salt)
	for ; len(tokens) >= h.block; tokens = tokens[h.block:] {
		hash = chain(hash, tokens[:h.block])
		out = append(out, hash)
	}
	return out
}
