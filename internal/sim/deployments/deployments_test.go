package deployments

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload/deployment"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/simtest"
)

const steps = 400

// DEPLOYMENTS_SEEDS=N runs N seeds.
func TestSeeds(t *testing.T) {
	simtest.Seeds(t, "DEPLOYMENTS_SEEDS", 150, func(seed uint64) error { return Run(seed, steps, Sabotage{}) })
}

// Each invariant can be broken, and the checks report it.
func TestChecksFindSabotage(t *testing.T) {
	grow := func(by int32) func(p *deployment.Plan) {
		return func(p *deployment.Plan) {
			for i := range p.Steps {
				s := p.Steps[i].Update
				if s == nil {
					s = p.Steps[i].Create
				}
				if s != nil {
					s.Spec.Replicas = new(max(0, *s.Spec.Replicas+by))
				}
			}
		}
	}
	without := func(drop func(deployment.Step) bool) func(p *deployment.Plan) {
		return func(p *deployment.Plan) {
			var kept []deployment.Step
			for _, s := range p.Steps {
				if !drop(s) {
					kept = append(kept, s)
				}
			}
			p.Steps = kept
		}
	}
	simtest.Breaks(t, map[fakeapi.Invariant]Sabotage{
		Surge:     {Plan: grow(1)},
		Minimum:   {Plan: grow(-1)},
		NoneTwice: {Stale: true},
		NoOverlap: {In: func(in *deployment.Input) {
			in.Running = func(types.UID) bool { return false }
			for i, s := range in.Sets {
				c := *s
				c.Status.Replicas = 0
				in.Sets[i] = &c
			}
		}},
		Ends: {Plan: without(func(s deployment.Step) bool {
			return s.Status != nil && s.Status.Status.UpdatedReplicas > 0
		})},
		History: {Plan: without(func(s deployment.Step) bool { return s.Delete != nil })},
	}, func(seed uint64, sabotage Sabotage) error { return Run(seed, steps, sabotage) })
}
