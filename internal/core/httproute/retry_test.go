package httproute

import (
	"testing"
	"time"
)

// HTTPRouteRetry: codes, attempts, and the shortest wait.
func TestRetry(t *testing.T) {
	const ms = time.Millisecond
	some := &Retry{Codes: []int{500, 503}, Attempts: 8}
	for _, c := range []struct {
		retry     *Retry
		n, status int
		wait      time.Duration
		again     bool
	}{
		{nil, 0, 500, 0, false}, {nil, 0, 0, 0, false}, {some, 0, 200, 0, false}, {some, 0, 502, 0, false},
		{some, 0, 500, 25 * ms, true}, {some, 1, 503, 50 * ms, true}, {some, 2, 0, 100 * ms, true},
		{some, 7, 500, time.Second, true}, {some, 8, 500, 0, false},
		{&Retry{Attempts: 2}, 0, 500, 0, false}, {&Retry{Attempts: 2}, 1, 0, 50 * ms, true},
		{&Retry{Attempts: 1 << 30, Backoff: time.Minute}, 1 << 29, 0, time.Minute, true},
		{&Retry{Attempts: 1 << 30, Backoff: 700 * ms}, 1 << 29, 0, time.Second, true},
	} {
		if wait, again := c.retry.Again(c.n, c.status); wait != c.wait || again != c.again {
			t.Errorf("%+v after %d attempts, %d: %s %t, want %s %t", c.retry, c.n, c.status, wait, again, c.wait, c.again)
		}
	}
}
