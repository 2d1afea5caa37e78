package routing

import (
	"math/rand/v2"
	"slices"
	"strings"
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
		}
		for s := range slots {
			x.drop(s)
		}
		if x.pairs != 0 || len(x.sets) != 0 {
			t.Fatalf("seed %d: %d pairs and %d sets are left", seed, x.pairs, len(x.sets))
		}
	}
}

// The size of a pool's index is limited for any number of endpoints and prompts.
func TestIndexIsBounded(t *testing.T) {
	p := pool(DefaultConfig(), 1000)
	most := mostPairs / 1000
	for i := range most + 500 {
		p.index.use(7, []uint64{uint64(i)}) //nolint:gosec // not negative
	}
	if got := len(p.index.lrus[7].at); got != most {
		t.Errorf("%d blocks of one of 1,000 endpoints, at most %d", got, most)
	}
	say(p, 7, begin, Stats{Blocks: 100, BlockTokens: 64})
	if got := len(p.index.lrus[7].at); got != 100 {
		t.Errorf("%d blocks of a server with 100", got)
	}
}

// Hashes depend on the text, not on its division into parts, and differ by model and salt.
func TestHasher(t *testing.T) {
	h := defaultPrefixHasher()
	text := []byte(strings.Repeat("0123456789abcdef", 100)) // 1,600 bytes: 6 blocks of 256
	whole := h.Hash(nil, "m", "", text)
	if len(whole) != 6 {
		t.Fatalf("%d blocks", len(whole))
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var parts [][]byte
		for rest := text; len(rest) > 0; {
			n := min(1+r.IntN(400), len(rest))
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
		if got := h.Hash(nil, "m", "", parts...); !slices.Equal(got, whole) {
			t.Fatalf("in %d parts: other hashes", len(parts))
		}
	}
	changed := slices.Clone(text)
	changed[300]++
	if got := h.Hash(nil, "m", "", changed); got[0] != whole[0] || got[1] == whole[1] || got[5] == whole[5] {
		t.Error("a change in the second block must change it and all after it")
	}
	for _, other := range [][]uint64{h.Hash(nil, "n", "", text), h.Hash(nil, "m", "tenant", text),
		h.Hash(nil, "", "m", text)} {
		if other[0] == whole[0] {
			t.Error("another model or salt has the same hash")
		}
	}
	if got := h.Hash(nil, "m", "", make([]byte, 2<<20)); len(got) != promptTokens/leastBlock {
		t.Errorf("%d blocks of a huge prompt", len(got))
	}
	if n := testing.AllocsPerRun(10, func() { whole = h.Hash(whole[:0], "m", "", text) }); n > 0 {
		t.Errorf("%g allocations", n)
	}
}

func defaultPrefixHasher() Hasher { return NewPool(DefaultConfig()).Hasher() }

func BenchmarkHash(b *testing.B) {
	h, text := defaultPrefixHasher(), make([]byte, 220<<10)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	var dst []uint64
	for b.Loop() {
		dst = h.Hash(dst[:0], "m", "", text)
	}
}
