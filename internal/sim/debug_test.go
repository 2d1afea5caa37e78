package sim

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

// TestOneSeed repeats one seed with its log, and shrinks a run that fails: SIM_SEED=7.
func TestOneSeed(t *testing.T) {
	seed := number(t, "SIM_SEED", 0, toUint)
	if seed == 0 {
		t.Skip("SIM_SEED is not set")
	}
	_, err := Run(Options{Seed: seed, Hours: number(t, "SIM_HOURS", 1, toFloat)})
	var v *Violation
	if !errors.As(err, &v) {
		t.Log("nothing is broken")
		return
	}
	v = Shrink(t.Context(), v)
	trace, _ := Trace(v, 200)
	for _, line := range trace {
		fmt.Fprintln(os.Stderr, line)
	}
	t.Fatal(v)
}
