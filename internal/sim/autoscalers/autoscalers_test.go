package autoscalers

import (
	"testing"

	"carob/internal/sim/fakeapi"
	"carob/internal/sim/simtest"
)

const steps = 300

func run(seed uint64, sabotage Sabotage) error {
	_, err := Run(seed, steps, sabotage)
	return err
}

// AUTOSCALERS_SEEDS=N runs N seeds.
func TestSeeds(t *testing.T) {
	simtest.Seeds(t, "AUTOSCALERS_SEEDS", 10, func(seed uint64) error { return run(seed, Sabotage{}) })
}

// Each invariant can be broken, and the checks report it.
func TestChecksFindSabotage(t *testing.T) {
	sabotages := map[fakeapi.Invariant]Sabotage{}
	for _, p := range Invariants() {
		sabotages[p.Invariant] = p.Sabotage
	}
	simtest.Breaks(t, sabotages, run)
}

// The seeds cover their subject: sizes change often.
func TestSeedsCoverTheirSubject(t *testing.T) {
	rescales := 0
	for seed := range uint64(10) {
		r, err := Run(seed, steps, Sabotage{})
		if err != nil {
			t.Fatal(err)
		}
		rescales += r.Rescales
	}
	if rescales < 30 {
		t.Errorf("%d changes of the size", rescales)
	}
}
