package daemons

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload/daemonset"
	"carob/internal/sim/cluster"
)

const steps = 300

// DAEMONS_SEEDS=N runs N seeds.
func seeds() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("DAEMONS_SEEDS"), 10, 32); err == nil {
		return n
	}
	return 150
}

func TestSeeds(t *testing.T) {
	for seed := range seeds() {
		if err := Run(seed, steps, Sabotage{}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// Each invariant can be broken, and the checks report it.
func TestPromisesBreak(t *testing.T) {
	for promise, sabotage := range map[cluster.Promise]Sabotage{
		OnePod:   {Stale: true},
		Eligible: {In: func(in *daemonset.Input) { in.Set.Spec.Template.Spec.NodeSelector = nil }},
		Minimum: {In: func(in *daemonset.Input) {
			if r := in.Set.Spec.UpdateStrategy.RollingUpdate; r != nil {
				r.MaxUnavailable = new(intstr.FromString("100%"))
			}
		}},
		Ends: {Plan: func(p *daemonset.Plan) { p.Again = time.Time{} }},
	} {
		noticed := false
		for seed := uint64(0); seed < 400 && !noticed; seed++ {
			var b *cluster.Broken
			noticed = errors.As(Run(seed, steps, sabotage), &b) && b.Promise == promise
		}
		if !noticed {
			t.Errorf("no check reports a broken invariant: %s", promise)
		}
	}
}
