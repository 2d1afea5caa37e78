package vpas

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload/vpa"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/simtest"
)

const steps = 400

// VPAS_SEEDS=N runs N seeds.
func TestSeeds(t *testing.T) {
	simtest.Seeds(t, "VPAS_SEEDS", 25, func(seed uint64) error { return Run(seed, steps, Sabotage{}) })
}

// Each invariant can be broken, and the checks report it.
func TestChecksFindSabotage(t *testing.T) {
	policy := func(f func(p *vpa.UpdatePolicy)) func(v *vpa.VerticalPodAutoscaler, _ []*corev1.Pod) {
		return func(v *vpa.VerticalPodAutoscaler, _ []*corev1.Pod) {
			p := *v.Spec.UpdatePolicy
			f(&p)
			v.Spec.UpdatePolicy = &p
		}
	}
	simtest.Breaks(t, map[fakeapi.Invariant]Sabotage{
		Bounds: {Recommended: func(v *vpa.VerticalPodAutoscaler) { v.Spec.ResourcePolicy = nil }},
		Quiet:  {Round: policy(func(p *vpa.UpdatePolicy) { p.UpdateMode = new(vpa.ModeRecreate) })},
		Least:  {Round: policy(func(p *vpa.UpdatePolicy) { p.MinReplicas = new(int32(1)) })},
		Half:   {Uncounted: true},
		Budget: {Deletes: true},
		InPlace: {Round: policy(func(p *vpa.UpdatePolicy) {
			if *p.UpdateMode == vpa.ModeInPlaceOrRecreate {
				p.UpdateMode = new(vpa.ModeRecreate)
			}
		})},
		Single: {Round: func(_ *vpa.VerticalPodAutoscaler, pods []*corev1.Pod) {
			for _, p := range pods {
				p.Status.Conditions = nil
			}
		}},
		Restart: {Forgets: true},
		Ends:    {DropSamples: true},
	}, func(seed uint64, sabotage Sabotage) error { return Run(seed, steps, sabotage) })
}
