// Package backoff computes the delay before a retry. It is a pure leaf package: the same history
// gives the same delays.
package backoff

import "time"

// Exponential doubles from Initial to Max.
type Exponential struct {
	Initial time.Duration
	Max     time.Duration
}

// Delay is the delay after the n-th consecutive failure, n from 1; 0 for n below 1.
func (e Exponential) Delay(n int) time.Duration {
	if n < 1 {
		return 0
	}
	d := e.Initial
	for range n - 1 {
		if d >= e.Max/2 {
			return e.Max
		}
		d *= 2
	}
	return min(d, e.Max)
}
