// Package backoff computes the delay before a retry. It is a pure leaf package: jitter is a hash of
// what is retried, so the same history gives the same delays.
package backoff

import (
	"hash/fnv"
	"time"
)

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

// Jitter extends d by up to a fraction of itself, always by the same for the same seed.
func Jitter(d time.Duration, fraction float64, seed string) time.Duration {
	h := fnv.New32a()
	h.Write([]byte(seed))
	return d + time.Duration(float64(d)*fraction*float64(h.Sum32())/(1<<32))
}
