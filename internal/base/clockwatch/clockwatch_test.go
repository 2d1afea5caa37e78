package clockwatch

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"carob/internal/base/testwait"
)

// Run ends with its context, also while nothing happens to the clock.
func TestRunEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, func() {}) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Each time that the clock is set is reported. With CAROB_SET_CLOCK=1 only, because it sets the clock of the machine:
// by a nanosecond, forward and back.
func TestClockIsSet(t *testing.T) {
	if os.Getenv("CAROB_SET_CLOCK") == "" {
		t.Skip("sets the clock of the machine; CAROB_SET_CLOCK=1 allows that")
	}
	ctx, cancel := context.WithCancel(t.Context())
	changed, done := make(chan struct{}, 100), make(chan error, 1)
	go func() { done <- Run(ctx, func() { changed <- struct{}{} }) }()
	for _, by := range []unix.Timeval{{Sec: 0, Usec: 1}, {Sec: -1, Usec: 1e9 - 1}} { // with ADJ_NANO
		limit, set := time.After(testwait.Limit), false
		for !set { // again, if Run was not ready yet
			if _, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_SETOFFSET | unix.ADJ_NANO, Time: by}); err != nil {
				t.Skip("set the clock: ", err)
			}
			select {
			case <-changed:
				set = true
			case <-limit:
				t.Fatal("no call after the clock was set")
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
