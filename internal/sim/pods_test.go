package sim

import (
	"math/rand/v2"
	"testing"

	"carob/internal/kinds/pods"
)

// The simulator runs Step with pods that the API server would accept.
func TestPodsAreValid(t *testing.T) {
	for seed := range uint64(500) {
		w := &world{rand: rand.New(rand.NewPCG(seed, 0))}
		p := w.newPod(0)
		pods.DefaultPod(p)
		if errs := pods.ValidatePodCreate(p); len(errs) > 0 {
			t.Fatalf("seed %d: %v", seed, errs.ToAggregate())
		}
	}
}
