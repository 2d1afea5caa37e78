package httproute

import (
	"slices"
	"time"
)

// Retry defines when a request is sent to a backend again (HTTPRouteRetry): after a response with one of the codes, and
// after a connection that failed.
type Retry struct {
	Codes    []int
	Attempts int           // after the first one
	Backoff  time.Duration // the shortest wait before each; 0: backoff
}

// The wait doubles from attempt to attempt, up to longestBackoff, and is never less than the route's.
const (
	backoff        = 25 * time.Millisecond
	longestBackoff = time.Second
)

// Again reports whether another attempt follows the one after n others, and the wait before it. status is that of the
// response; 0: there was none.
func (r *Retry) Again(n, status int) (wait time.Duration, again bool) {
	if r == nil || n >= r.Attempts || status != 0 && !slices.Contains(r.Codes, status) {
		return 0, false
	}
	if wait = r.Backoff; wait == 0 {
		wait = backoff
	}
	for ; n > 0 && wait < longestBackoff; n-- {
		wait = min(2*wait, max(longestBackoff, r.Backoff))
	}
	return wait, true
}
