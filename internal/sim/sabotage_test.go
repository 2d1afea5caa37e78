package sim

import (
	"errors"
	"testing"
)

// Each invariant can fail: with a sabotaged Step, some seed reports it.
func TestChecksFindSabotage(t *testing.T) {
	if len(Invariants) != len(saboteurs)+2 {
		t.Errorf("%d invariants, %d ways to break them", len(Invariants), len(saboteurs)+2)
	}
	for _, i := range Invariants {
		t.Run(i.Name, func(t *testing.T) {
			t.Parallel()
			if i.Clause == "" || i.Text == "" {
				t.Errorf("%+v has no clause", i)
			}
			for seed := range uint64(300) {
				_, err := Run(Options{Seed: seed, Hours: 0.5, Break: i.Name})
				var v *Violation
				if errors.As(err, &v) && v.Invariant == i {
					t.Logf("%v", v)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			t.Fatal("no seed reports the sabotage")
		})
	}
}
