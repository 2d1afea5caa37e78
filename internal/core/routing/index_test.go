package routing

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// naive is a simple implementation of the index.
type naive map[int][]uint64 // slot → blocks, the most recently used first

func (n naive) use(slot, capacity int, blocks []uint64) {
	for _, b := range slices.Backward(blocks[:min(len(blocks), capacity)]) {
		all := slices.DeleteFunc(n[slot], func(x uint64) bool { return x == b })
		all = slices.Insert(all, 0, b)
		n[slot] = all[:min(len(all), capacity)]
	}
}

func (n naive) match(slot int, blocks []uint64) (length int32) {
	for _, b := range blocks {
		if !slices.Contains(n[slot], b) {
			break
		}
		length++
	}
	return length
}

// The index gives the same results as the naive one, for random prompts with shared beginnings and endpoints that are
// added and removed.
func TestIndex(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 1))
		x, n := newIndex(), naive{}
		slots := 1 + r.IntN(90)
		capacity := 1 + r.IntN(40)
		x.grow(slots)
		for s := range slots {
			x.resize(s, capacity)
		}
		var prompts [][]uint64
		for range 12 { // chains: a hash depends on all blocks before it, so that each block has one predecessor
			var p []uint64
			if len(prompts) > 0 && r.IntN(3) > 0 {
				old := prompts[r.IntN(len(prompts))]
				p = append(p, old[:r.IntN(len(old)+1)]...)
			}
			for range 1 + r.IntN(30) {
				p = append(p, r.Uint64())
			}
			prompts = append(prompts, p)
		}
		for range 200 {
			p := prompts[r.IntN(len(prompts))]
			p = p[:1+r.IntN(len(p))]
			slot := r.IntN(slots)
			switch r.IntN(20) {
			case 0:
				x.drop(slot)
				x.resize(slot, capacity)
				delete(n, slot)
			case 1:
				slots += r.IntN(30)
				x.grow(slots)
				for s := range slots {
					x.resize(s, capacity)
				}
			default:
				x.use(slot, p)
				n.use(slot, capacity, p)
			}
			q := prompts[r.IntN(len(prompts))]
			lengths := make([]int32, slots)
			longest := x.match(q, lengths)
			for s, got := range lengths {
				if want := n.match(s, q); got != want {
					t.Fatalf("seed %d: endpoint %d has %d of %d blocks, the index has %d", seed, s, want, len(q), got)
				}
			}
			if int(slices.Max(lengths)) != longest {
				t.Fatalf("seed %d: the longest is %d, not %d", seed, slices.Max(lengths), longest)
			}
			pairs := 0
			for _, all := range n {
				pairs += len(all)
			}
			if x.pairs != pairs {
				t.Fatalf("seed %d: %d pairs, not %d", seed, x.pairs, pairs)
			}
			consistent(t, x)
		}
		for s := range slots {
			x.drop(s)
		}
		if x.pairs != 0 || len(x.at) != 0 {
			t.Fatalf("seed %d: %d pairs and %d runs are left", seed, x.pairs, len(x.at))
		}
	}
}

// consistent checks what the parts of an index state about each other.
func consistent(t *testing.T, x *index) {
	t.Helper()
	pairs, holders, cut := 0, map[int32]int32{}, map[int32]int32{}
	for slot := range x.lrus {
		l := &x.lrus[slot]
		size, before := 0, none
		for n := l.head; n != none; n = l.nodes[n].next {
			r := l.nodes[n].run
			if l.nodes[n].prev != before || l.at[r] != n || x.set(r)[slot/64]&(1<<(slot%64)) == 0 {
				t.Fatalf("endpoint %d: the list and the sets differ", slot)
			}
			have := x.held(slot, r)
			if have < len(x.runs[r].blocks) {
				cut[r]++
			}
			size, before = size+have, n
			holders[r]++
		}
		if l.tail != before || l.size != size || size > l.capacity || l.part > 0 && l.tail == none {
			t.Fatalf("endpoint %d has %d blocks, not %d, of at most %d", slot, size, l.size, l.capacity)
		}
		pairs += size
	}
	bytes := 0
	for hash, r := range x.at {
		one := &x.runs[r]
		if len(one.blocks) == 0 || one.blocks[0] != hash || one.holders != holders[r] || one.cut != cut[r] ||
			one.holders == 0 {
			t.Fatalf("run %d: %d endpoints, %d with a part, not %d and %d", r, holders[r], cut[r], one.holders, one.cut)
		}
		bytes += 8 * cap(one.blocks)
	}
	if x.pairs != pairs || len(x.at)+len(x.free) != len(x.runs) || len(x.at) != len(holders) {
		t.Fatalf("%d pairs, not %d; %d runs, %d free, of %d", pairs, x.pairs, len(x.at), len(x.free), len(x.runs))
	}
	if limit := 16*pairs + 512*len(x.lrus); bytes > limit { // 512: 40 blocks of which only some are in use, rounded up
		t.Fatalf("%d bytes for %d pairs", bytes, pairs)
	}
}

// Clients can make prompts with equal hashes. They get wrong matches, and change nothing else.
func TestIndexWithEqualHashes(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		x := newIndex()
		slots := 1 + r.IntN(5)
		x.grow(slots)
		for s := range slots {
			x.resize(s, 1+r.IntN(12))
		}
		for range 300 {
			prompt := make([]uint64, 1+r.IntN(15))
			for i := range prompt {
				prompt[i] = r.Uint64N(6)
			}
			x.use(r.IntN(slots), prompt)
			consistent(t, x)
			lengths := make([]int32, slots)
			if longest := x.match(prompt, lengths); longest > len(prompt) || int(slices.Max(lengths)) > longest {
				t.Fatalf("seed %d: %d of %d blocks", seed, longest, len(prompt))
			}
		}
		for s := range slots {
			x.drop(s)
			consistent(t, x)
		}
		if len(x.at) > 0 {
			t.Fatalf("seed %d: %d runs are left", seed, len(x.at))
		}
	}
}

// The time of a long prompt that shares nothing, in an index that is full.
func BenchmarkIndex(b *testing.B) {
	x := newIndex()
	x.grow(2)
	x.resize(0, lruCapacity)
	x.resize(1, lruCapacity)
	prompt, next := make([]uint64, 860), uint64(0)
	lengths := make([]int32, 2)
	r := rand.New(rand.NewPCG(1, 3))
	b.ReportAllocs()
	for b.Loop() {
		for i := range prompt {
			prompt[i] = r.Uint64()
		}
		next++
		x.match(prompt, lengths)
		x.use(int(next%2), prompt)
	}
}

// The size of a pool's index is limited for any number of endpoints and prompts.
func TestIndexIsBounded(t *testing.T) {
	p := pool(DefaultConfig(), 1000)
	most := mostPairs / 1000
	for i := range most + 500 {
		p.index.use(7, []uint64{uint64(i)}) //nolint:gosec // not negative
	}
	if got := p.index.lrus[7].size; got != most {
		t.Errorf("%d blocks of one of 1,000 endpoints, at most %d", got, most)
	}
	setStats(p, 7, begin, Stats{Blocks: 100, BlockTokens: 64})
	if got := p.index.lrus[7].size; got != 100 {
		t.Errorf("%d blocks of a server with 100", got)
	}
}
