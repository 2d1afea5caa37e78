package seconds

import (
	"math"
	"testing"
	"time"
)

// TestDuration: a timeout that no duration holds is the longest one, not a negative or short one.
func TestDuration(t *testing.T) {
	const longest = 9_223_372_036 * time.Second
	for n, want := range map[int64]time.Duration{0: 0, 30: 30 * time.Second, -1: -time.Second,
		9_223_372_036: longest, 9_223_372_037: longest, 18_446_744_074: longest, math.MaxInt64: longest,
		-9_223_372_037: -longest, math.MinInt64: -longest} {
		if got := Duration(n); got != want {
			t.Errorf("%d s: %v, want %v", n, got, want)
		}
	}
}
