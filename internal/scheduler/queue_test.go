package scheduler

import (
	"strings"
	"testing"
	"time"

	"carob/internal/core/placement"
)

// L2.3: a back-off ends at a whole second, and does not take longer when the wall clock is set back meanwhile.
func TestBackOffKeepsTheMonotonicClock(t *testing.T) {
	q := newQueue(time.Second, 10*time.Second)
	now := time.Now()
	q.Add(placement.Prepare(pod("a", "1")), now)
	q.Fail(q.Pop(), now)
	next := q.Next()
	if !strings.Contains(next.String(), " m=") {
		t.Errorf("%v depends on the wall clock", next)
	}
	if wait := next.Sub(now); next.Nanosecond() != 0 || wait < time.Second || wait > 2*time.Second {
		t.Errorf("from %v to %v", now, next)
	}
}
