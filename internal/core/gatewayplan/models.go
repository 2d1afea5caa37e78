package gatewayplan

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/gatewayplan/modelrules"
	"carob/internal/core/httproute"
)

// readModels gives each pool its models, and decides which of them are valid.
func (p *planner) readModels() {
	conditions := func() map[Name][]metav1.Condition { return map[Name][]metav1.Condition{} }
	p.Plan.Models, p.Plan.Objectives, p.Plan.Rewrites = conditions(), conditions(), conditions()
	p.Plan.RouterObjectives, p.Plan.RouterRewrites = conditions(), conditions()
	poolOf := func(o metav1.Object, ref inferenceapi.PoolRef) *modelrules.Rules {
		pool := p.pools[httproute.Ref{Namespace: o.GetNamespace(), Name: ref.Name, Pool: ref.Group}]
		if pool == nil {
			return nil
		}
		if pool.Models == nil {
			pool.Models = modelrules.New()
		}
		return pool.Models
	}
	accepted := func(generation int64) []metav1.Condition {
		return []metav1.Condition{condition("Accepted", true, "Accepted", "the pool serves it", generation)}
	}
	for _, in := range byAge(p.Inference.Models) {
		models := poolOf(in, in.Spec.PoolRef)
		if models == nil {
			continue // its status reports that it is pending
		}
		if !models.AddModel(in) {
			p.Plan.Models[nameOf(in)] = []metav1.Condition{condition("Accepted", false, "ModelNameInUse",
				"an older InferenceModel of the pool has this modelName", in.Generation)}
			continue
		}
		p.Plan.Models[nameOf(in)] = accepted(in.Generation)
	}
	objectives := func(all []*inferenceapi.Objective, about map[Name][]metav1.Condition) {
		for _, in := range all {
			if models := poolOf(in, in.Spec.PoolRef); models != nil {
				models.AddObjective(in)
				about[nameOf(in)] = accepted(in.Generation)
			}
		}
	}
	objectives(p.Inference.Objectives, p.Plan.Objectives)
	objectives(p.Inference.RouterObjectives, p.Plan.RouterObjectives) // of equal names, the newer kind applies
	newer := map[*inferenceapi.Rewrite]bool{}
	for _, in := range p.Inference.RouterRewrites {
		newer[in] = true
	}
	for _, in := range byAge(slices.Concat(p.Inference.RouterRewrites, p.Inference.Rewrites)) { // the oldest wins
		models := poolOf(in, in.Spec.PoolRef)
		switch {
		case models == nil:
			continue
		case newer[in]:
			p.Plan.RouterRewrites[nameOf(in)] = accepted(in.Generation)
		default:
			p.Plan.Rewrites[nameOf(in)] = accepted(in.Generation)
		}
		models.AddRewrite(in)
	}
}
