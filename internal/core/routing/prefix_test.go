package routing

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

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
