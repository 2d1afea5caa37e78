// Package simtest is for the tests of the simulators on package cluster: it runs their seeds, and
// shows that each of their invariants can be broken.
package simtest

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"carob/internal/sim/fakeapi"
)

// Seeds runs seeds of a simulator, each of which returns the first broken invariant: the number in
// the environment variable, or a few.
func Seeds(t *testing.T, variable string, few uint64, run func(seed uint64) error) {
	t.Helper()
	seeds := few
	if n, err := strconv.ParseUint(os.Getenv(variable), 10, 32); err == nil {
		seeds = n
	}
	for seed := range seeds {
		if err := run(seed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// searched is the number of seeds that are tried until one breaks an invariant.
const searched = 400

// Breaks runs each sabotage until its invariant is reported as broken; another one does not count.
func Breaks[S any](t *testing.T, sabotages map[fakeapi.Invariant]S, run func(seed uint64, sabotage S) error) {
	t.Helper()
	for invariant, sabotage := range sabotages {
		found := false
		for seed := uint64(0); seed < searched && !found; seed++ {
			var b *fakeapi.Broken
			found = errors.As(run(seed, sabotage), &b) && b.Invariant == invariant
		}
		if !found {
			t.Errorf("no check reports a broken invariant: %s", invariant)
		}
	}
}
