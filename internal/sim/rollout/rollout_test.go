package rollout

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload/deployment"
)

const steps = 400

// ROLLOUT_SEEDS=N runs N seeds.
func seeds() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("ROLLOUT_SEEDS"), 10, 32); err == nil {
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
	for promise, sabotage := range map[Promise]Sabotage{
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
	} {
		noticed := false
		for seed := uint64(0); seed < 400 && !noticed; seed++ {
			var b *Broken
			noticed = errors.As(Run(seed, steps, sabotage), &b) && b.Promise == promise
		}
		if !noticed {
			t.Errorf("no check reports a broken invariant: %s", promise)
		}
	}
}
