package routing

import (
	"fmt"
	"math/bits"
	"slices"
)

// prefixConfig defines how prompts are split and the size of the index.
type prefixConfig struct {
	AutoTune               bool    `json:"autoTune"`
	BlockSize              int     `json:"blockSize"`     // characters, of an older version: as upstream, ignored
	HashBlockSize          int     `json:"hashBlockSize"` // the same in an even older version
	BlockSizeTokens        int     `json:"blockSizeTokens"`
	MaxPrefixBlocksToMatch int     `json:"maxPrefixBlocksToMatch"`
	MaxPrefixTokensToMatch int     `json:"maxPrefixTokensToMatch"`
	LRUCapacityPerServer   int     `json:"lruCapacityPerServer"`
	MatchLengthWeight      float64 `json:"matchLengthWeight"`
}

// The defaults of the approximate index (2.4): blocks of 16 tokens, but at least 64, at most 131,072 tokens of a
// prompt.
const (
	blockTokens  = 16
	leastBlock   = 64
	promptTokens = 131072
	lruCapacity  = 31250
)

// mostPairs limits the blocks in the index of a pool for all endpoints together: 2 million of about 50 bytes. Pools
// with more than 64 endpoints have a lower limit for each.
const mostPairs = 2 << 20

func defaultPrefix() prefixConfig {
	return prefixConfig{AutoTune: true, BlockSizeTokens: blockTokens, LRUCapacityPerServer: lruCapacity}
}

func readPrefix(into func(any) error) (prefixConfig, error) {
	c := defaultPrefix()
	c.BlockSizeTokens = 0
	if err := into(&c); err != nil {
		return c, err
	}
	if c.BlockSizeTokens == 0 {
		c.BlockSizeTokens = blockTokens
	}
	switch {
	case c.BlockSizeTokens < 0 || c.BlockSizeTokens > 1<<16:
		return c, fmt.Errorf("blockSizeTokens is %d, not between 1 and 65536", c.BlockSizeTokens)
	case c.MaxPrefixBlocksToMatch < 0 || c.MaxPrefixBlocksToMatch > mostBlocks:
		return c, fmt.Errorf("maxPrefixBlocksToMatch is %d, not between 0 and %d", c.MaxPrefixBlocksToMatch, mostBlocks)
	case c.MaxPrefixTokensToMatch < 0 || c.MaxPrefixTokensToMatch > mostBlocks*leastBlock:
		return c, fmt.Errorf("maxPrefixTokensToMatch is %d, not between 0 and %d", c.MaxPrefixTokensToMatch,
			mostBlocks*leastBlock)
	case c.LRUCapacityPerServer < 0 || c.LRUCapacityPerServer > mostCapacity:
		return c, fmt.Errorf("lruCapacityPerServer is %d, not between 0 and %d", c.LRUCapacityPerServer, mostCapacity)
	case !(c.MatchLengthWeight >= 0 && c.MatchLengthWeight <= 1):
		return c, fmt.Errorf("matchLengthWeight is %g, not between 0 and 1", c.MatchLengthWeight)
	}
	if c.LRUCapacityPerServer == 0 {
		c.LRUCapacityPerServer = lruCapacity
	}
	return c, nil
}

// hasher returns the hasher for the configuration and the servers' block size.
func (c *prefixConfig) hasher(serverBlock int) Hasher {
	tokens := c.BlockSizeTokens
	if c.AutoTune && serverBlock > 0 {
		tokens = min(serverBlock, 1<<16)
	}
	if c.AutoTune {
		tokens = max(tokens, leastBlock)
	}
	most := promptTokens / tokens
	switch {
	case c.MaxPrefixTokensToMatch > 0:
		most = c.MaxPrefixTokensToMatch / tokens
	case c.MaxPrefixBlocksToMatch > 0:
		most = c.MaxPrefixBlocksToMatch
	}
	return Hasher{block: tokens * bytesPerToken, most: min(most, mostBlocks)}
}

// index records the blocks that were sent to each endpoint. It removes the least recently used blocks of an endpoint.
//
// A block is always removed before the blocks in front of it in its prompt, because using a block uses those in front
// of it after it. So an endpoint that has a block has all in front of it, and the endpoints that have block i of a
// prompt are a part of those that have block i-1: match finds lengths by bisection.
type index struct {
	slots int              // number of endpoints in each set
	sets  map[uint64]int32 // block → set
	words []uint64         // the sets, (slots+63)/64 words each
	free  []int32          // sets that are not used
	lrus  []lru            // by slot
	pairs int              // blocks of all endpoints
	most  int              // limit of pairs
	spans []span           // for match
}

// lru holds the blocks sent to one endpoint, from the most to the least recently used.
type lru struct {
	at       map[uint64]int32 // block → node
	nodes    []node
	free     []int32
	head     int32
	tail     int32
	capacity int
}

type node struct {
	hash       uint64
	prev, next int32
}

const none = int32(-1)

func newIndex() *index { return &index{sets: map[uint64]int32{}, most: mostPairs} }

func (x *index) stride() int { return (x.slots + 63) / 64 }

// grow resizes the sets for this many endpoints.
func (x *index) grow(slots int) {
	for len(x.lrus) < slots {
		x.lrus = append(x.lrus, lru{head: none, tail: none})
	}
	if slots <= x.slots {
		return
	}
	old := x.stride()
	x.slots = max(64, 1<<bits.Len(uint(slots-1)))
	if now := x.stride(); now != old && old > 0 {
		words := make([]uint64, len(x.words)/old*now)
		for i := range len(x.words) / old {
			copy(words[i*now:], x.words[i*old:(i+1)*old])
		}
		x.words = words
	}
}

// set returns the endpoints that have a block; nil: none.
func (x *index) set(hash uint64) []uint64 {
	i, ok := x.sets[hash]
	if !ok {
		return nil
	}
	s := x.stride()
	return x.words[int(i)*s : (int(i)+1)*s]
}

// span is a part of a prompt whose ends are known.
type span struct{ low, high int }

// match writes, for each endpoint, how many blocks of a prompt it has cached, and returns the
// maximum. lengths has one entry for each slot.
func (x *index) match(blocks []uint64, lengths []int32) int {
	clear(lengths)
	if len(blocks) == 0 || x.set(blocks[0]) == nil {
		return 0
	}
	// The number of blocks that any endpoint has: the first low blocks are cached, block high is
	// not.
	low, high := 1, len(blocks)+1
	for step := 1; low+step < high; step *= 2 { // doubling: most prompts share little
		if x.set(blocks[low+step-1]) == nil {
			high = low + step
			break
		}
		low += step
	}
	for high-low > 1 {
		mid := (low + high) / 2
		if x.set(blocks[mid-1]) != nil {
			low = mid
		} else {
			high = mid
		}
	}
	longest := low
	x.mark(x.set(blocks[longest-1]), nil, longest, lengths)
	// Endpoints that have the first block and not the last one of those: between two blocks with the same
	// endpoints, no match ends.
	x.spans = append(x.spans[:0], span{1, longest})
	for len(x.spans) > 0 {
		s := x.spans[len(x.spans)-1]
		x.spans = x.spans[:len(x.spans)-1]
		if s.high <= s.low {
			continue
		}
		from, to := x.set(blocks[s.low-1]), x.set(blocks[s.high-1])
		if sameEndpoints(from, to) {
			continue
		}
		if s.high-s.low == 1 {
			x.mark(from, to, s.low, lengths)
			continue
		}
		mid := (s.low + s.high) / 2
		x.spans = append(x.spans, span{s.low, mid}, span{mid, s.high})
	}
	return longest
}

// sameEndpoints reports whether two sets of endpoints are equal. They have the same length.
func sameEndpoints(a, b []uint64) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// mark writes a length for the endpoints that are in one set and not in the other.
func (x *index) mark(in, out []uint64, length int, lengths []int32) {
	for w, word := range in {
		if out != nil {
			word &^= out[w]
		}
		for ; word != 0; word &= word - 1 {
			if slot := w*64 + bits.TrailingZeros64(word); slot < len(lengths) {
				lengths[slot] = int32(length) //nolint:gosec // at most mostBlocks
			}
		}
	}
}

// use records that an endpoint now has the blocks of a prompt.
func (x *index) use(slot int, blocks []uint64) {
	l := &x.lrus[slot]
	if l.capacity <= 0 {
		return
	}
	if len(blocks) > l.capacity {
		blocks = blocks[:l.capacity]
	}
	if l.at == nil {
		l.at = map[uint64]int32{}
	}
	for _, hash := range slices.Backward(blocks) { // the first block becomes the most recently used
		if n, ok := l.at[hash]; ok {
			l.unlink(n)
			l.push(n)
			continue
		}
		if len(l.at) >= l.capacity {
			x.forgetLast(slot)
		}
		n := l.take(hash)
		l.at[hash] = n
		l.push(n)
		x.pairs++
		x.add(hash, slot)
	}
}

func (x *index) add(hash uint64, slot int) {
	i, ok := x.sets[hash]
	s := x.stride()
	if !ok {
		if n := len(x.free); n > 0 {
			i, x.free = x.free[n-1], x.free[:n-1]
		} else {
			i = int32(len(x.words) / s) //nolint:gosec // at most mostPairs
			for range s {
				x.words = append(x.words, 0)
			}
		}
		x.sets[hash] = i
	}
	x.words[int(i)*s+slot/64] |= 1 << (slot % 64)
}

func (x *index) remove(hash uint64, slot int) {
	i, ok := x.sets[hash]
	if !ok {
		return
	}
	s := x.stride()
	set := x.words[int(i)*s : (int(i)+1)*s]
	set[slot/64] &^= 1 << (slot % 64)
	for _, word := range set {
		if word != 0 {
			return
		}
	}
	delete(x.sets, hash)
	x.free = append(x.free, i)
}

// forgetLast removes the least recently used block of an endpoint.
func (x *index) forgetLast(slot int) {
	l := &x.lrus[slot]
	n := l.tail
	if n == none {
		return
	}
	hash := l.nodes[n].hash
	l.unlink(n)
	l.free = append(l.free, n)
	delete(l.at, hash)
	x.pairs--
	x.remove(hash, slot)
}

// resize sets the limit of blocks of an endpoint.
func (x *index) resize(slot, capacity int) {
	l := &x.lrus[slot]
	for l.capacity = capacity; len(l.at) > capacity; {
		x.forgetLast(slot)
	}
}

// drop removes an endpoint.
func (x *index) drop(slot int) {
	l := &x.lrus[slot]
	for n := l.head; n != none; n = l.nodes[n].next {
		x.remove(l.nodes[n].hash, slot)
		x.pairs--
	}
	*l = lru{head: none, tail: none}
}

func (l *lru) take(hash uint64) int32 {
	if n := len(l.free); n > 0 {
		i := l.free[n-1]
		l.free = l.free[:n-1]
		l.nodes[i] = node{hash: hash}
		return i
	}
	l.nodes = append(l.nodes, node{hash: hash})
	return int32(len(l.nodes) - 1) //nolint:gosec // at most mostCapacity
}

func (l *lru) push(n int32) {
	l.nodes[n].prev, l.nodes[n].next = none, l.head
	if l.head != none {
		l.nodes[l.head].prev = n
	}
	l.head = n
	if l.tail == none {
		l.tail = n
	}
}

func (l *lru) unlink(n int32) {
	at := l.nodes[n]
	if at.prev != none {
		l.nodes[at.prev].next = at.next
	} else {
		l.head = at.next
	}
	if at.next != none {
		l.nodes[at.next].prev = at.prev
	} else {
		l.tail = at.prev
	}
}
