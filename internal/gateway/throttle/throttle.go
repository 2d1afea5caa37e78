// Package throttle limits the CPU time of a loop: a few short rounds follow each other at once; many, or long ones, use
// half of the time.
package throttle

import "time"

// Throttle is the CPU time that the next rounds of a loop may use without a wait. Its zero value allows Burst.
type Throttle struct {
	spent time.Duration // more than the time since has allowed, from 0 to Burst+Longest
	ended time.Time     // of the last round
}

const (
	// Burst is how much time rounds may take in a row before there is a wait.
	Burst = 100 * time.Millisecond
	// Longest is the longest wait: also after a round of a minute, changes are followed soon.
	Longest = time.Second
)

// Ended records a round, and returns how long the next one must wait. While no round runs, the time that rounds may
// take grows as fast as time passes.
func (t *Throttle) Ended(began, ended time.Time) time.Duration {
	if !t.ended.IsZero() {
		t.spent -= max(0, began.Sub(t.ended))
	}
	t.spent = min(max(t.spent, 0)+max(0, ended.Sub(began)), Burst+Longest)
	t.ended = ended
	return max(0, t.spent-Burst)
}
