package sim_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"

	"carob/internal/sim"
	"carob/internal/sim/seeds"
)

// number reads a number from the environment.
func number[T any](t *testing.T, name string, def T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func toUint(s string) (uint64, error)   { return strconv.ParseUint(s, 10, 64) }
func toFloat(s string) (float64, error) { return strconv.ParseFloat(s, 64) }

// TestSeeds runs the seeds of every push. SIM_SEEDS sets their number, SIM_HOURS their length;
// "carob sim" runs more and shows what led to a failure.
func TestSeeds(t *testing.T) {
	total, err := seeds.Run(t.Context(),
		seeds.Range{Count: number(t, "SIM_SEEDS", 150, toUint), Hours: number(t, "SIM_HOURS", 1, toFloat)})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", total)
	if total.Starts == 0 || total.Crashes == 0 || total.Reboots == 0 || total.Faulty == 0 ||
		total.Faulty == int(total.Runs) {
		t.Fatal("something never happens")
	}
}

// TestOneSeed repeats one seed with its log, and shrinks a run that fails: SIM_SEED=7.
func TestOneSeed(t *testing.T) {
	seed := number(t, "SIM_SEED", 0, toUint)
	if seed == 0 {
		t.Skip("SIM_SEED is not set")
	}
	_, err := sim.Run(sim.Options{Seed: seed, Hours: number(t, "SIM_HOURS", 1, toFloat)})
	var v *sim.Violation
	if !errors.As(err, &v) {
		t.Log("nothing is broken")
		return
	}
	v = seeds.Shrink(t.Context(), v)
	trace, _ := seeds.Trace(v, 200)
	for _, line := range trace {
		fmt.Fprintln(os.Stderr, line)
	}
	t.Fatal(v)
}
