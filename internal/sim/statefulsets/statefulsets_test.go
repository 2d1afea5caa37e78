package statefulsets

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload/statefulset"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/simtest"
)

const steps = 300

// STATEFULSETS_SEEDS=N runs N seeds.
func TestSeeds(t *testing.T) {
	simtest.Seeds(t, "STATEFULSETS_SEEDS", 150, func(seed uint64) error { return Run(seed, steps, Sabotage{}) })
}

// Each invariant can be broken, and the checks report it.
func TestChecksFindSabotage(t *testing.T) {
	zeros := 0
	simtest.Breaks(t, map[fakeapi.Invariant]Sabotage{
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
	}, func(seed uint64, sabotage Sabotage) error { return Run(seed, steps, sabotage) })
}
