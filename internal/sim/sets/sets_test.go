package sets

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload/statefulset"
	"carob/internal/sim/cluster"
)

const steps = 300

// SETS_SEEDS=N runs N seeds.
func seeds() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("SETS_SEEDS"), 10, 32); err == nil {
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
	zeros := 0
	for promise, sabotage := range map[cluster.Promise]Sabotage{
		OneOrdinal: {Plan: func(p *statefulset.Plan) { // each creation gets another name: db-1, db-01, db-001
			for _, stage := range p.Stages {
				for i, step := range stage {
					if step.Action == statefulset.Create {
						zeros++
						stage[i].Pod.Name = strings.Replace(step.Pod.Name, "-", "-"+strings.Repeat("0", zeros%3), 1)
					}
				}
			}
		}},
		Order: {In: func(in *statefulset.Input) { in.Set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }},
		Minimum: {In: func(in *statefulset.Input) {
			in.Set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(5))
		}},
		Ends: {Plan: func(p *statefulset.Plan) { p.Again = time.Time{} }},
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
