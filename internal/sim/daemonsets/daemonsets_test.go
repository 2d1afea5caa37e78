package daemonsets

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload/daemonset"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/simtest"
)

const steps = 300

// DAEMONSETS_SEEDS=N runs N seeds.
func TestSeeds(t *testing.T) {
	simtest.Seeds(t, "DAEMONSETS_SEEDS", 150, func(seed uint64) error { return Run(seed, steps, Sabotage{}) })
}

// Each invariant can be broken, and the checks report it.
func TestChecksFindSabotage(t *testing.T) {
	simtest.Breaks(t, map[fakeapi.Invariant]Sabotage{
		OnePod:   {Stale: true},
		Eligible: {In: func(in *daemonset.Input) { in.Set.Spec.Template.Spec.NodeSelector = nil }},
		Minimum: {In: func(in *daemonset.Input) {
			if r := in.Set.Spec.UpdateStrategy.RollingUpdate; r != nil {
				r.MaxUnavailable = new(intstr.FromString("100%"))
			}
		}},
		Ends: {Plan: func(p *daemonset.Plan) { p.Again = time.Time{} }},
	}, func(seed uint64, sabotage Sabotage) error { return Run(seed, steps, sabotage) })
}
