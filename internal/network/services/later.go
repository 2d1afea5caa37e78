package services

import (
	"sync/atomic"
	"time"
)

// later repeats something that failed, after a wait. It has one timer, however often it is started meanwhile: if each
// failure had its own, each would lead to the next one for ever, and failures in between would add to them.
type later struct {
	wait    time.Duration
	do      func()
	running atomic.Bool
}

func (l *later) start() {
	if l.running.CompareAndSwap(false, true) {
		time.AfterFunc(l.wait, func() {
			l.running.Store(false)
			l.do()
		})
	}
}
