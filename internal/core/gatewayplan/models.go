package gatewayplan

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
)

// Priorities of the criticalities of an InferenceModel (1.3); below 0 a request may be refused.
const (
	priorityCritical  = 1
	priorityStandard  = 0
	prioritySheddable = -1
)

// Models defines how the requests of a pool for each model are served.
type Models struct {
	models     map[string]model    // InferenceModels, by the name that clients use
	objectives map[string]int      // priorities of InferenceObjectives, by their names
	exact      map[string][]target // InferenceModelRewrites, by the name that clients use
	all        []target            // of a rewrite without matches
	any        bool                // there is a rewrite without matches
}

type model struct {
	priority int
	targets  []target
}

// target is a model name at the servers, and its share of the requests.
type target struct {
	name   string
	weight int64
}

// Resolved defines how a request is served.
type Resolved struct {
	// Target is the model name in the request to the server.
	Target   string
	Priority int
	// Known: an InferenceModel or a rewrite has the name that the client used.
	Known bool
}

// Resolve decides about a request for a model. objective is the header that names an InferenceObjective, random any
// number.
func (m *Models) Resolve(name, objective string, random uint64) Resolved {
	out := Resolved{Target: name}
	if m == nil {
		return out
	}
	of, known := m.models[name]
	switch {
	case known:
		out.Known, out.Priority = true, of.priority
	case len(m.models) > 0:
		out.Priority = prioritySheddable // by default, requests for a model are sheddable
	}
	targets := of.targets
	if rewrite, ok := m.exact[name]; ok {
		out.Known, targets = true, rewrite
	} else if m.any {
		out.Known, targets = true, m.all
	}
	out.Target = draw(targets, random, name)
	if priority, known := m.objectives[objective]; known { // others must not make a sheddable request a standard one
		out.Priority = priority
	}
	return out
}

// Names returns the client-side model names of InferenceModels and InferenceModelRewrites, sorted.
func (m *Models) Names() []string {
	if m == nil {
		return nil
	}
	var out []string
	for name := range m.models { // any order: sorted
		out = append(out, name)
	}
	for name := range m.exact { // any order: sorted
		if _, both := m.models[name]; !both {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Sheds reports whether requests for other models are refused first.
func (m *Models) Sheds() bool { return m != nil && len(m.models) > 0 }

// Rewrites reports whether a rule may change any model name or depend on it.
func (m *Models) Rewrites() bool { return m != nil && (len(m.models) > 0 || len(m.exact) > 0 || m.any) }

func draw(targets []target, random uint64, fallback string) string {
	var sum int64
	for _, t := range targets {
		sum += t.weight
	}
	if sum <= 0 {
		return fallback
	}
	n := int64(random % uint64(sum))
	for _, t := range targets {
		if n -= t.weight; n < 0 {
			return t.name
		}
	}
	return fallback
}

// even gives all targets the same share if none has a weight. If others have one, a target without a weight is
// never chosen.
func even(all []target) []target {
	if !slices.ContainsFunc(all, func(t target) bool { return t.weight > 0 }) {
		for i := range all {
			all[i].weight = 1
		}
	}
	return all
}

// readModels gives each pool its models, and decides which of them are valid.
func (p *planner) readModels() {
	conditions := func() map[Name][]metav1.Condition { return map[Name][]metav1.Condition{} }
	p.Plan.Models, p.Plan.Objectives, p.Plan.Rewrites = conditions(), conditions(), conditions()
	p.Plan.RouterObjectives, p.Plan.RouterRewrites = conditions(), conditions()
	poolOf := func(o metav1.Object, ref inferenceapi.PoolRef) *Models {
		pool := p.pools[httproute.Ref{Namespace: o.GetNamespace(), Name: ref.Name, Pool: ref.Group}]
		if pool == nil {
			return nil
		}
		if pool.Models == nil {
			pool.Models = &Models{models: map[string]model{}, objectives: map[string]int{},
				exact: map[string][]target{}}
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
		if _, taken := models.models[in.Spec.ModelName]; taken {
			p.Plan.Models[nameOf(in)] = []metav1.Condition{condition("Accepted", false, "ModelNameInUse",
				"an older InferenceModel of the pool has this modelName", in.Generation)}
			continue
		}
		m := model{priority: priorityStandard}
		switch in.Spec.Criticality {
		case "Critical":
			m.priority = priorityCritical
		case "Sheddable":
			m.priority = prioritySheddable
		}
		for _, t := range in.Spec.TargetModels {
			m.targets = append(m.targets, target{t.Name, int64(or(t.Weight, 0))})
		}
		m.targets = even(m.targets)
		models.models[in.Spec.ModelName] = m
		p.Plan.Models[nameOf(in)] = accepted(in.Generation)
	}
	objectives := func(all []*inferenceapi.Objective, about map[Name][]metav1.Condition) {
		for _, in := range all {
			if models := poolOf(in, in.Spec.PoolRef); models != nil {
				models.objectives[in.Name] = int(or(in.Spec.Priority, 0))
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
		models.rewrite(in)
	}
}

func (m *Models) rewrite(in *inferenceapi.Rewrite) {
	for _, rule := range in.Spec.Rules {
		var targets []target
		for _, t := range rule.Targets {
			targets = append(targets, target{t.ModelRewrite, int64(or(t.Weight, 0))})
		}
		targets = even(targets)
		if len(rule.Matches) == 0 && !m.any {
			m.any, m.all = true, targets
		}
		for _, match := range rule.Matches {
			switch {
			case match.Model == nil:
				if !m.any {
					m.any, m.all = true, targets
				}
			case m.exact[match.Model.Value] == nil:
				m.exact[match.Model.Value] = targets
			}
		}
	}
}
