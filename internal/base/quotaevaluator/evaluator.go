// Package quotaevaluator adapts the rules for counting objects against resource quotas to the
// evaluator interface of k8s.io/apiserver/pkg/quota/v1. The admission of the API server and the
// quota controller create evaluators with it and pass the function that lists objects. It must
// never decide what counts: the rules do.
package quotaevaluator

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// List returns all objects of a kind in a namespace. Kinds that are only counted need metadata,
// those with rules complete objects.
type List func(gr schema.GroupResource, namespace string) ([]runtime.Object, error)

// Rules define how objects of a kind are counted; core/quota has those of Kubernetes.
type Rules interface {
	// Concerns reports whether objects use the resource.
	Concerns(name corev1.ResourceName) bool
	// Scoped reports whether quotas with scopes can select objects.
	Scoped() bool
	// InScope reports whether an object is in a scope.
	InScope(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error)
	// Usage returns what an object uses.
	Usage(o runtime.Object, now time.Time) (corev1.ResourceList, error)
	// Missing returns what an object must set if the required resources are limited.
	Missing(required []corev1.ResourceName, o runtime.Object) error
}

// New returns the evaluator of a kind with rules. counts reports which requests can change the
// usage, and is nil if none are to be checked; list is nil if usage is not summed.
func New(gr schema.GroupResource, rules Rules, counts func(admission.Attributes) bool, list List) quota.Evaluator {
	return &evaluator{gr: gr, rules: rules, counts: counts, list: list}
}

// Count returns the evaluator of a kind whose objects are counted as count/KIND.GROUP, and also as
// alias, if it is not empty.
func Count(gr schema.GroupResource, list List, alias corev1.ResourceName) quota.Evaluator {
	lister := func(namespace string) ([]runtime.Object, error) { return list(gr, namespace) }
	return generic.NewObjectCountEvaluator(gr, lister, alias)
}

type evaluator struct {
	gr     schema.GroupResource
	rules  Rules
	counts func(admission.Attributes) bool
	list   List
}

var _ quota.Evaluator = (*evaluator)(nil)

// Constraints implements quota.Evaluator.
func (e *evaluator) Constraints(required []corev1.ResourceName, o runtime.Object) error {
	return e.rules.Missing(required, o)
}

// GroupResource implements quota.Evaluator.
func (e *evaluator) GroupResource() schema.GroupResource { return e.gr }

// Handles implements quota.Evaluator.
func (e *evaluator) Handles(a admission.Attributes) bool {
	return e.counts != nil && e.counts(a)
}

// Matches implements quota.Evaluator.
func (e *evaluator) Matches(q *corev1.ResourceQuota, o runtime.Object) (bool, error) {
	return generic.Matches(q, o, e.MatchingResources, e.rules.InScope)
}

// MatchingScopes implements quota.Evaluator.
func (e *evaluator) MatchingScopes(o runtime.Object, scopes []corev1.ScopedResourceSelectorRequirement) (
	[]corev1.ScopedResourceSelectorRequirement, error) {
	out := []corev1.ScopedResourceSelectorRequirement{}
	if !e.rules.Scoped() {
		return out, nil
	}
	for _, s := range scopes {
		in, err := e.rules.InScope(s, o)
		if err != nil {
			return nil, fmt.Errorf("match scope %s: %w", s.ScopeName, err)
		}
		if in {
			out = append(out, s)
		}
	}
	return out, nil
}

// UncoveredQuotaScopes implements quota.Evaluator.
func (e *evaluator) UncoveredQuotaScopes(limited, matched []corev1.ScopedResourceSelectorRequirement) (
	[]corev1.ScopedResourceSelectorRequirement, error) {
	out := []corev1.ScopedResourceSelectorRequirement{}
	if !e.rules.Scoped() {
		return out, nil
	}
	for _, l := range limited {
		same := func(m corev1.ScopedResourceSelectorRequirement) bool { return m.ScopeName == l.ScopeName }
		if !slices.ContainsFunc(matched, same) {
			out = append(out, l)
		}
	}
	return out, nil
}

// MatchingResources implements quota.Evaluator.
func (e *evaluator) MatchingResources(names []corev1.ResourceName) []corev1.ResourceName {
	out := []corev1.ResourceName{}
	for _, n := range names {
		if e.rules.Concerns(n) {
			out = append(out, n)
		}
	}
	return out
}

// Usage implements quota.Evaluator.
func (e *evaluator) Usage(o runtime.Object) (corev1.ResourceList, error) {
	return e.rules.Usage(o, time.Now())
}

// UsageStats implements quota.Evaluator.
func (e *evaluator) UsageStats(o quota.UsageStatsOptions) (quota.UsageStats, error) {
	lister := func(namespace string) ([]runtime.Object, error) { return e.list(e.gr, namespace) }
	return generic.CalculateUsageStats(o, lister, e.rules.InScope, e.Usage)
}
