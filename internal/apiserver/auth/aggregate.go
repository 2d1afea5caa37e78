package auth

import (
	"context"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"carob/internal/base/backoff"
)

// aggregateAgain is the wait after roles could not be written.
var aggregateAgain = backoff.Exponential{Initial: time.Second, Max: 5 * time.Minute}

// Aggregate has the aggregated ClusterRoles written when roles have changed, until ctx ends. A write that fails is
// tried again.
func (r *RBAC) Aggregate(ctx context.Context, write func(context.Context, *rbacv1.ClusterRole) error) {
	failures := 0
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-again:
		}
		failed := false
		for _, role := range r.aggregated() {
			// A conflict means that a newer version is on its way and will signal again.
			if err := write(ctx, role); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				failed = true
				klog.FromContext(ctx).Error(err, "Aggregating the rules of a role failed", "clusterRole", role.Name)
			}
		}
		if again = nil; !failed {
			failures = 0
			continue
		}
		failures++
		again = time.After(aggregateAgain.Delay(failures))
	}
}

// aggregated returns the stored ClusterRoles with an aggregation rule whose rules are not up to
// date, each with the rules that it should have. A role may be aggregated into one that is
// aggregated into a third: storing the result leads to the next change.
func (r *RBAC) aggregated() []*rbacv1.ClusterRole {
	all := r.clusterRoles()
	slices.SortFunc(all, func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
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

// clusterRoles returns the ClusterRoles, which are for reading only. Decisions do not wait while they are compared.
func (r *RBAC) clusterRoles() []*rbacv1.ClusterRole {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make([]*rbacv1.ClusterRole, 0, len(r.kinds[clusterRoles]))
	for _, o := range r.kinds[clusterRoles] {
		all = append(all, o.(*rbacv1.ClusterRole))
	}
	return all
}

// gather returns the rules of the roles that role selects, each once, in the order of the selectors
// and then of the names.
func gather(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	have := map[string]bool{} // by the encoded rule: a role may have tens of thousands
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
				text, err := p.Marshal()
				if err != nil || have[string(text)] {
					continue // a rule that was read can be encoded
				}
				have[string(text)] = true
				rules = append(rules, p)
			}
		}
	}
	return rules
}
