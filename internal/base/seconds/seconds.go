// Package seconds converts numbers of seconds of the API, which may be larger than a duration holds. It must never ask
// what time it is.
package seconds

import (
	"math"
	"time"
)

const longest = int64(math.MaxInt64 / time.Second)

// Duration returns so many seconds, at most as long as a duration holds: 292 years. A multiplication would return a
// short or negative duration.
func Duration(n int64) time.Duration {
	return time.Duration(min(max(n, -longest), longest)) * time.Second
}
