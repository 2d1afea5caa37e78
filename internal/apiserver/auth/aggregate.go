package auth

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Changed has a value after roles or bindings have changed, however many times.
func (r *RBAC) Changed() <-chan struct{} { return r.changed }

// Aggregated returns the stored ClusterRoles with an aggregation rule whose rules are not up to
// date, each with the rules that it should have. A role may be aggregated into one that is
// aggregated into a third: storing the result leads to the next change.
func (r *RBAC) Aggregated() []*rbacv1.ClusterRole {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make([]*rbacv1.ClusterRole, 0, len(r.kinds[clusterRoles]))
	for _, o := range r.kinds[clusterRoles] {
		all = append(all, o.(*rbacv1.ClusterRole))
	}
	slices.SortFunc(all, func(a, b *rbacv1.ClusterRole) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	var out []*rbacv1.ClusterRole
	for _, role := range all {
		if role.AggregationRule == nil || isUnstored(role) {
			continue
		}
		rules := gather(role, all)
		if !equality.Semantic.DeepEqual(rules, role.Rules) {
			c := role.DeepCopy()
			c.Rules = rules
			out = append(out, c)
		}
	}
	return out
}

// gather returns the rules of the roles that role selects, each once, in the order of the selectors
// and then of the names.
func gather(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for i := range role.AggregationRule.ClusterRoleSelectors {
		sel, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			continue // validation rejects invalid ones
		}
		for _, part := range all {
			if part.Name == role.Name || !sel.Matches(labels.Set(part.Labels)) {
				continue
			}
			for _, p := range part.Rules {
				if !slices.ContainsFunc(rules,
					func(have rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(have, p) }) {
					rules = append(rules, p)
				}
			}
		}
	}
	return rules
}
