package batch

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// overlap finds what a comparison of each index with each other finds, also in lists that are not valid.
func TestOverlap(t *testing.T) {
	const n = 30
	rng := rand.New(rand.NewPCG(1, 2))
	list := func() (string, [n]bool) {
		var parts []string
		var has [n]bool
		for range rng.IntN(5) {
			low := rng.IntN(n)
			high := min(low+rng.IntN(4), n-1)
			text := strconv.Itoa(low)
			if high > low {
				text += "-" + strconv.Itoa(high)
			}
			parts = append(parts, text, "x", "5-3", "9-", "77")
			for i := low; i <= high; i++ {
				has[i] = true
			}
		}
		return strings.Join(parts, ","), has
	}
	for range 2000 {
		a, hasA := list()
		b, hasB := list()
		want := int32(-1)
		for i := n - 1; i >= 0; i-- {
			if hasA[i] && hasB[i] {
				want = int32(i)
			}
		}
		got, both := overlap(a, b, n)
		if !both {
			got = -1
		}
		if got != want {
			t.Fatalf("%q and %q: %d, want %d", a, b, got, want)
		}
	}
}

// The lists of a status may have the size of a request: comparing each part with each other would take minutes.
func TestOverlapOfLargestLists(t *testing.T) {
	var even, odd []byte
	const last = 600_000
	for i := range int64(last) {
		even = append(strconv.AppendInt(even, 2*i, 10), ',')
		odd = append(strconv.AppendInt(odd, 2*i+1, 10), ',')
	}
	if x, both := overlap(string(even), string(odd), 2*last); both {
		t.Errorf("both have %d", x)
	}
	odd = strconv.AppendInt(odd, 2*last-2, 10)
	if x, both := overlap(string(even), string(odd), 2*last); !both || x != 2*last-2 {
		t.Errorf("%d %v", x, both)
	}
}
