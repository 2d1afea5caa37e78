// Package goroutinestack grows a goroutine's stack in one step. Go doubles a stack each time it is too small
// and copies it frame by frame: this took 6 % of the CPU time of API writes, whose goroutines are
// new and have deep call stacks. Call Grow in a new goroutine before a deep call, while its stack
// is almost empty; nothing may depend on it.
package goroutinestack

// room is more than half of the intended stack size, 32 KB.
const room = 17 << 10

// Grow grows the stack of the calling goroutine.
func Grow() { reserve(false) }

// reserve has a large frame, which its prologue allocates; nothing is ever written to it.
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
