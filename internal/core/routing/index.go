package routing

import (
	"math/bits"
	"slices"
)

// index records the blocks that were sent to each endpoint. It removes the least recently used blocks of an endpoint.
//
// The hash of a block depends on all blocks before it, so prompts form a tree. The index stores it as runs: blocks
// that follow each other in every prompt that has the first one. A prompt that shares nothing is one run, and a prompt
// is found by one look-up for each run: look-ups of single blocks took half of the processor time of a long prompt.
//
// A block is always removed before the blocks in front of it in its prompt, because using a block uses those in front
// of it after it. So an endpoint that has a block has all in front of it. Equal hashes of different prompts, which
// clients can make, are wrong matches and nothing worse.
type index struct {
	at    map[uint64]int32 // first block of a run → run
	runs  []run
	free  []int32 // runs that are not used
	slots int     // number of endpoints in each set
	words []uint64
	lrus  []lru // by slot
	pairs int   // blocks of all endpoints
	path  []step
}

// run is a part of prompts. The endpoints that have at least its first block are a set in index.words.
type run struct {
	blocks  []uint64
	holders int32 // endpoints that have it
	cut     int32 // those of them that have only its first blocks
}

// lru has the runs sent to one endpoint, from the most to the least recently used. Of the last one, the endpoint may
// have only the first blocks.
type lru struct {
	at       map[int32]int32 // run → node
	nodes    []node
	free     []int32
	head     int32
	tail     int32
	part     int // blocks of the last run; 0: all
	size     int // blocks
	capacity int
}

type node struct{ run, prev, next int32 }

// step is a run on the path of a prompt: its first n blocks are those of the prompt from a place on.
type step struct {
	run     int32
	from, n int
}

const none = int32(-1)

func newIndex() *index { return &index{at: map[uint64]int32{}} }

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

// set returns the endpoints that have a run.
func (x *index) set(r int32) []uint64 {
	s := x.stride()
	return x.words[int(r)*s : (int(r)+1)*s]
}

// held returns how many blocks of a run an endpoint has. The endpoint is in the set of the run.
func (x *index) held(slot int, r int32) int {
	all := &x.runs[r]
	if all.cut > 0 {
		if l := &x.lrus[slot]; l.part > 0 && l.nodes[l.tail].run == r {
			return l.part
		}
	}
	return len(all.blocks)
}

// walk finds the runs of a prompt, as x.path, and returns how many of its blocks they have.
func (x *index) walk(blocks []uint64) (known int) {
	x.path = x.path[:0]
	for known < len(blocks) {
		r, ok := x.at[blocks[known]]
		if !ok {
			break
		}
		run := x.runs[r].blocks
		n := common(run, blocks[known:])
		x.path = append(x.path, step{r, known, n})
		if known += n; n < len(run) {
			break
		}
	}
	return known
}

// common returns how many blocks are equal.
func common(a, b []uint64) int {
	n := min(len(a), len(b))
	for i, hash := range a[:n] {
		if hash != b[i] {
			return i
		}
	}
	return n
}

// match writes, for each endpoint, how many blocks of a prompt it has cached, and returns the
// maximum. lengths has one entry for each slot.
func (x *index) match(blocks []uint64, lengths []int32) (longest int) {
	clear(lengths)
	x.walk(blocks)
	var further []uint64 // the endpoints that have the next run, too
	for _, s := range slices.Backward(x.path) {
		set := x.set(s.run)
		for w, word := range set {
			if further != nil {
				word &^= further[w]
			}
			for ; word != 0; word &= word - 1 {
				slot := w*64 + bits.TrailingZeros64(word)
				if slot >= len(lengths) {
					break
				}
				n := s.from + min(s.n, x.held(slot, s.run))
				lengths[slot] = int32(n) //nolint:gosec // at most mostBlocks
				longest = max(longest, n)
			}
		}
		further = set
	}
	return longest
}

// use records that an endpoint now has the blocks of a prompt.
func (x *index) use(slot int, blocks []uint64) {
	l := &x.lrus[slot]
	if blocks = blocks[:min(len(blocks), max(l.capacity, 0))]; len(blocks) == 0 {
		return
	}
	known := x.walk(blocks)
	if n := len(x.path); n > 0 {
		if last := x.path[n-1]; last.n < len(x.runs[last.run].blocks) {
			x.split(last.run, last.n)
		}
	}
	if known < len(blocks) && !x.taken(blocks[known]) {
		x.path = append(x.path, step{run: x.add(slices.Clone(blocks[known:]))})
	}
	for _, s := range slices.Backward(x.path) { // the first run becomes the most recently used
		x.hold(slot, s.run)
	}
	x.shrink(slot)
}

// taken reports whether another run begins with this block. Different prompts then have equal hashes: the rest of the
// new one is not recorded.
func (x *index) taken(hash uint64) bool {
	_, taken := x.at[hash]
	return taken
}

// add adds a run that no endpoint has yet.
func (x *index) add(blocks []uint64) int32 {
	var r int32
	if n := len(x.free); n > 0 {
		r, x.free = x.free[n-1], x.free[:n-1]
	} else {
		r = int32(len(x.runs)) //nolint:gosec // at most mostPairs
		x.runs = append(x.runs, run{})
		for range x.stride() {
			x.words = append(x.words, 0)
		}
	}
	x.runs[r] = run{blocks: blocks}
	x.at[blocks[0]] = r
	return r
}

// remove removes a run that no endpoint has.
func (x *index) remove(r int32) {
	delete(x.at, x.runs[r].blocks[0])
	x.runs[r] = run{}
	x.free = append(x.free, r)
}

// split divides a run: its first n blocks remain, the others become a run of their own.
func (x *index) split(r int32, n int) {
	all := x.runs[r].blocks
	taken, rest := x.taken(all[n]), none
	if !taken {
		rest = x.add(slices.Clone(all[n:]))
	}
	first := &x.runs[r]
	for w, word := range x.set(r) {
		for ; word != 0; word &= word - 1 {
			slot := w*64 + bits.TrailingZeros64(word)
			l := &x.lrus[slot]
			have := x.held(slot, r)
			cut := have < len(all)
			switch {
			case have < n:
				continue // as before
			case have > n && taken:
				x.count(l, n-have)
			case have > n:
				l.insert(l.at[r], rest)
				x.join(slot, rest)
				if cut {
					l.part, x.runs[rest].cut = have-n, x.runs[rest].cut+1
				}
			}
			if cut {
				if first.cut--; have == n || taken {
					l.part = 0
				}
			}
		}
	}
	first.blocks = slices.Clone(all[:n]) // an array that is shared would stay until both are removed
	if !taken && x.runs[rest].holders == 0 {
		x.remove(rest)
	}
}

// join adds an endpoint to the set of a run.
func (x *index) join(slot int, r int32) {
	x.set(r)[slot/64] |= 1 << (slot % 64)
	x.runs[r].holders++
}

// count changes the number of blocks of an endpoint.
func (x *index) count(l *lru, n int) {
	l.size += n
	x.pairs += n
}

// hold makes a run the most recently used one of an endpoint, which now has all of it.
func (x *index) hold(slot int, r int32) {
	l := &x.lrus[slot]
	all := &x.runs[r]
	n, ok := l.at[r]
	switch {
	case !ok:
		x.count(l, len(all.blocks))
		x.join(slot, r)
		n = l.take(r)
	case n == l.tail && l.part > 0:
		x.count(l, len(all.blocks)-l.part)
		l.part = 0
		all.cut--
		fallthrough
	default:
		l.unlink(n)
	}
	l.push(n)
}

// shrink removes the least recently used blocks of an endpoint beyond its capacity.
func (x *index) shrink(slot int) {
	l := &x.lrus[slot]
	for l.size > l.capacity && l.tail != none {
		r := l.nodes[l.tail].run
		all, have := &x.runs[r], x.held(slot, r)
		over := l.size - l.capacity
		if over >= have {
			x.leave(slot, l.tail)
			continue
		}
		x.count(l, -over)
		if have -= over; all.holders > 1 {
			if l.part == 0 {
				all.cut++
			}
			l.part = have
			return
		}
		// No server has the rest.
		if all.blocks = all.blocks[:have]; 2*have <= cap(all.blocks) {
			all.blocks = slices.Clone(all.blocks)
		}
		all.cut, l.part = 0, 0
	}
}

// leave removes the run of a node from an endpoint.
func (x *index) leave(slot int, n int32) {
	l := &x.lrus[slot]
	r := l.nodes[n].run
	all := &x.runs[r]
	x.count(l, -x.held(slot, r))
	if n == l.tail && l.part > 0 {
		l.part = 0
		all.cut--
	}
	l.unlink(n)
	l.free = append(l.free, n)
	delete(l.at, r)
	x.set(r)[slot/64] &^= 1 << (slot % 64)
	if all.holders--; all.holders == 0 {
		x.remove(r)
	}
}

// resize sets the limit of blocks of an endpoint.
func (x *index) resize(slot, capacity int) {
	x.lrus[slot].capacity = max(capacity, 0)
	x.shrink(slot)
}

// drop removes an endpoint.
func (x *index) drop(slot int) {
	l := &x.lrus[slot]
	for l.tail != none {
		x.leave(slot, l.tail)
	}
	*l = lru{head: none, tail: none}
}

// take returns a node for a run, which is not in the list yet.
func (l *lru) take(r int32) int32 {
	var i int32
	if n := len(l.free); n > 0 {
		i, l.free = l.free[n-1], l.free[:n-1]
	} else {
		i = int32(len(l.nodes)) //nolint:gosec // at most mostCapacity
		l.nodes = append(l.nodes, node{})
	}
	l.nodes[i].run = r
	if l.at == nil {
		l.at = map[int32]int32{}
	}
	l.at[r] = i
	return i
}

// insert adds a run behind a node.
func (l *lru) insert(after, r int32) {
	n := l.take(r)
	next := l.nodes[after].next
	l.nodes[n].prev, l.nodes[n].next = after, next
	if l.nodes[after].next = n; next != none {
		l.nodes[next].prev = n
	} else {
		l.tail = n
	}
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
