package execute

import (
	"testing"
	"time"
)

// CRI counts whole seconds; a grace is never cut.
func TestWholeSeconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, time.Nanosecond: 1, 1500 * time.Millisecond: 2,
		2 * time.Second: 2} {
		if got := wholeSeconds(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
}
