// Package modelrules decides how the requests of an InferencePool for a model are served: under which name a model
// server gets them, and with which priority. It is pure; core/gatewayplan fills the rules from the objects of the
// inference extension, and package gateway resolves each request by them.
package modelrules

import (
	"maps"
	"slices"

	"k8s.io/utils/ptr"

	"carob/internal/core/gatewayplan/inferenceapi"
)

// Priorities of the criticalities of an InferenceModel (1.3); below 0 a request may be refused.
const (
	priorityCritical  = 1
	priorityStandard  = 0
	prioritySheddable = -1
)

// Rules define how the requests of a pool for each model are served. Nil rules change nothing. Whoever fills them adds
// the oldest object first: it holds.
type Rules struct {
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
func (m *Rules) Resolve(name, objective string, random uint64) Resolved {
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
func (m *Rules) Names() []string {
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
func (m *Rules) Sheds() bool { return m != nil && len(m.models) > 0 }

// Rewrites reports whether a rule may change any model name or depend on it.
func (m *Rules) Rewrites() bool { return m != nil && (len(m.models) > 0 || len(m.exact) > 0 || m.any) }

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

// New returns rules without a model.
func New() *Rules {
	return &Rules{models: map[string]model{}, objectives: map[string]int{}, exact: map[string][]target{}}
}

// AddModel adds an InferenceModel; false: an older one has its name.
func (m *Rules) AddModel(in *inferenceapi.Model) bool {
	if _, taken := m.models[in.Spec.ModelName]; taken {
		return false
	}
	added := model{priority: priorityStandard}
	switch in.Spec.Criticality {
	case "Critical":
		added.priority = priorityCritical
	case "Sheddable":
		added.priority = prioritySheddable
	}
	for _, t := range in.Spec.TargetModels {
		added.targets = append(added.targets, target{t.Name, int64(ptr.Deref(t.Weight, 0))})
	}
	added.targets = even(added.targets)
	m.models[in.Spec.ModelName] = added
	return true
}

// AddObjective adds an InferenceObjective; it replaces one of its name.
func (m *Rules) AddObjective(in *inferenceapi.Objective) {
	m.objectives[in.Name] = int(ptr.Deref(in.Spec.Priority, 0))
}

// AddRewrite adds an InferenceModelRewrite, but for the names that an older one has.
func (m *Rules) AddRewrite(in *inferenceapi.Rewrite) {
	for _, rule := range in.Spec.Rules {
		var targets []target
		for _, t := range rule.Targets {
			targets = append(targets, target{t.ModelRewrite, int64(ptr.Deref(t.Weight, 0))})
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

// Same reports whether all requests are served alike.
func (m *Rules) Same(now *Rules) bool {
	if m == nil || now == nil {
		return m == now
	}
	return maps.EqualFunc(m.models, now.models, func(a, b model) bool {
		return a.priority == b.priority && slices.Equal(a.targets, b.targets)
	}) && maps.Equal(m.objectives, now.objectives) && maps.EqualFunc(m.exact, now.exact, slices.Equal) &&
		slices.Equal(m.all, now.all) && m.any == now.any
}
