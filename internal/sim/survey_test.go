package sim

import (
	"errors"
	"os"
	"testing"
)

func TestSurvey(t *testing.T) {
	if os.Getenv("SIM_SURVEY") == "" {
		t.Skip()
	}
	first := number(t, "SIM_FIRST", 0, toUint)
	n := number(t, "SIM_SEEDS", 100, toUint)
	hours := number(t, "SIM_HOURS", 1, toFloat)
	type hit struct {
		n     int
		first *Violation
		seeds []uint64
	}
	byName := map[string]*hit{}
	for seed := first; seed < first+n; seed++ {
		_, err := Run(Options{Seed: seed, Hours: hours})
		var v *Violation
		if errors.As(err, &v) {
			h := byName[v.Invariant.Name]
			if h == nil {
				h = &hit{first: v}
				byName[v.Invariant.Name] = h
			}
			h.n++
			h.seeds = append(h.seeds, seed)
		}
	}
	for name, h := range byName {
		t.Logf("%s: %d of %d, seeds %v: %s", name, h.n, n, h.seeds[:min(8, len(h.seeds))], h.first.Detail)
	}
}
