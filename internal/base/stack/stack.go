// Package stack saves a goroutine the way from a small stack to a large one. Go
// doubles a stack each time it is too small and moves all that is on it, frame by
// frame: 6 % of the processor time of API writes, whose goroutines are new and
// call deep. Whoever is about to call deep from a new goroutine calls Grow while
// little is on its stack; nothing may depend on it.
package stack

// room is more than half of what the goroutine shall have: 32 KB.
const room = 17 << 10

// Grow makes the stack of the calling goroutine large.
func Grow() { reserve(false) }

// reserve has a large frame, which its prologue sees to; nothing is ever written to it.
//
//go:noinline
func reserve(write bool) {
	if write {
		var b [room]byte
		fill(&b)
	}
}

//go:noinline
func fill(b *[room]byte) { b[0]++ }
