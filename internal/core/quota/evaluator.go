// Package quota measures what objects take from the resource quotas of their
// namespace: which resources a kind concerns, how much of them an object uses, which
// scopes it is in.
//
// It is pure. Admission and the quota controller drive it through the evaluator
// interface of k8s.io/apiserver/pkg/quota/v1, so that both count alike; they hand in
// how objects are listed and what time it is.
package quota

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// List returns all objects of a kind in a namespace. Counting kinds ask for
// metadata only; the four kinds with rules of their own need whole objects.
type List func(gr schema.GroupResource, namespace string) ([]runtime.Object, error)

// Ignored are the kinds no quota counts.
func Ignored() map[schema.GroupResource]struct{} {
	return map[schema.GroupResource]struct{}{
		{Resource: "events"}: {}, {Group: "events.k8s.io", Resource: "events"}: {},
		{Resource: "bindings"}: {}, {Resource: "componentstatuses"}: {}, {Resource: "namespaces"}: {},
		{Group: "authentication.k8s.io", Resource: "tokenreviews"}: {}, {Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}: {},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}: {}, {Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}: {},
		{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"}: {}, {Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: {},
		{Group: "apiregistration.k8s.io", Resource: "apiservices"}: {},
	}
}

// Evaluators returns those of all kinds that are more than counted, and of the kinds
// that are counted under an old name, too. list may be nil where usage is not summed.
func Evaluators(list List, now func() time.Time) []quota.Evaluator {
	out := []quota.Evaluator{
		&evaluator{gr: podKind, list: list, rules: podRules(now)},
		&evaluator{gr: serviceKind, list: list, rules: serviceRules()},
		&evaluator{gr: volumeClaimKind, list: list, rules: volumeClaimRules()},
		&evaluator{gr: deviceClaimKind, list: list, rules: deviceClaimRules()},
	}
	for _, old := range []corev1.ResourceName{corev1.ResourceConfigMaps, corev1.ResourceQuotas, corev1.ResourceReplicationControllers, corev1.ResourceSecrets} {
		out = append(out, counter(corev1.Resource(string(old)), list, old))
	}
	return out
}

// Count returns the evaluator of a kind whose objects are counted.
func Count(gr schema.GroupResource, list List) quota.Evaluator { return counter(gr, list, "") }

func counter(gr schema.GroupResource, list List, alias corev1.ResourceName) quota.Evaluator {
	return generic.NewObjectCountEvaluator(gr, func(namespace string) ([]runtime.Object, error) { return list(gr, namespace) }, alias)
}

// CountedKind returns the kind that a resource name such as count/jobs.batch counts.
func CountedKind(name corev1.ResourceName) (schema.GroupResource, bool) {
	kind, ok := strings.CutPrefix(string(name), "count/")
	if !ok {
		return schema.GroupResource{}, false
	}
	return schema.ParseGroupResource(kind), true
}

// rules are what evaluators differ in.
type rules struct {
	handles func(a admission.Attributes) bool
	concern func(name corev1.ResourceName) bool
	inScope func(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error)
	usage   func(o runtime.Object) (corev1.ResourceList, error)
	missing func(required []corev1.ResourceName, o runtime.Object) error
}

type evaluator struct {
	gr   schema.GroupResource
	list List
	rules
}

var _ quota.Evaluator = (*evaluator)(nil)

// Constraints implements quota.Evaluator.
func (e *evaluator) Constraints(required []corev1.ResourceName, o runtime.Object) error {
	if e.missing == nil {
		return nil
	}
	return e.missing(required, o)
}

// GroupResource implements quota.Evaluator.
func (e *evaluator) GroupResource() schema.GroupResource { return e.gr }

// Handles implements quota.Evaluator.
func (e *evaluator) Handles(a admission.Attributes) bool { return e.handles(a) }

// Matches implements quota.Evaluator.
func (e *evaluator) Matches(q *corev1.ResourceQuota, o runtime.Object) (bool, error) {
	return generic.Matches(q, o, e.MatchingResources, e.matchesScope)
}

func (e *evaluator) matchesScope(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error) {
	if e.inScope == nil {
		return false, nil
	}
	return e.inScope(s, o)
}

// MatchingScopes implements quota.Evaluator.
func (e *evaluator) MatchingScopes(o runtime.Object, scopes []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	out := []corev1.ScopedResourceSelectorRequirement{}
	if e.inScope == nil {
		return out, nil
	}
	for _, s := range scopes {
		in, err := e.inScope(s, o)
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
func (e *evaluator) UncoveredQuotaScopes(limited, matched []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	out := []corev1.ScopedResourceSelectorRequirement{}
	if e.inScope == nil {
		return out, nil
	}
	for _, l := range limited {
		if !slices.ContainsFunc(matched, func(m corev1.ScopedResourceSelectorRequirement) bool { return m.ScopeName == l.ScopeName }) {
			out = append(out, l)
		}
	}
	return out, nil
}

// MatchingResources implements quota.Evaluator.
func (e *evaluator) MatchingResources(names []corev1.ResourceName) []corev1.ResourceName {
	out := []corev1.ResourceName{}
	for _, n := range names {
		if e.concern(n) {
			out = append(out, n)
		}
	}
	return out
}

// Usage implements quota.Evaluator.
func (e *evaluator) Usage(o runtime.Object) (corev1.ResourceList, error) { return e.usage(o) }

// UsageStats implements quota.Evaluator.
func (e *evaluator) UsageStats(o quota.UsageStatsOptions) (quota.UsageStats, error) {
	return generic.CalculateUsageStats(o, func(namespace string) ([]runtime.Object, error) { return e.list(e.gr, namespace) }, e.matchesScope, e.usage)
}

func count(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }

func writes(a admission.Attributes) bool {
	return a.GetSubresource() == "" && (a.GetOperation() == admission.Create || a.GetOperation() == admission.Update)
}

// asSelector turns a scope's requirement into one on labels with the scope's name.
func asSelector(s corev1.ScopedResourceSelectorRequirement) (labels.Selector, error) {
	op := map[corev1.ScopeSelectorOperator]selection.Operator{
		corev1.ScopeSelectorOpIn: selection.In, corev1.ScopeSelectorOpNotIn: selection.NotIn,
		corev1.ScopeSelectorOpExists: selection.Exists, corev1.ScopeSelectorOpDoesNotExist: selection.DoesNotExist,
	}[s.Operator]
	if op == "" {
		return nil, fmt.Errorf("%q is not an operator of a scope selector", s.Operator)
	}
	r, err := labels.NewRequirement(string(s.ScopeName), op, s.Values)
	if err != nil {
		return nil, fmt.Errorf("scope selector: %w", err)
	}
	return labels.NewSelector().Add(*r), nil
}
