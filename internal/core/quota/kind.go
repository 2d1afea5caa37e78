// Package quota measures what objects take from the resource quotas of their
// namespace: which resources a kind concerns, how much of them an object uses, which
// scopes it is in.
//
// It is pure. Admission and the quota controller drive it through
// base/quotaevaluator, which fits the rules of a kind to the evaluator interface of
// k8s.io/apiserver/pkg/quota/v1, so that both count alike.
package quota

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
)

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

// Kinds returns the rules of the kinds that are more than counted.
func Kinds() []Kind {
	return []Kind{podRules(), serviceRules(), volumeClaimRules(), deviceClaimRules()}
}

// OldNames returns the kinds that are counted under an old name beside count/…: resource name and kind are spelled alike.
func OldNames() []corev1.ResourceName {
	return []corev1.ResourceName{corev1.ResourceConfigMaps, corev1.ResourceQuotas, corev1.ResourceReplicationControllers, corev1.ResourceSecrets}
}

// CountedKind returns the kind that a resource name such as count/jobs.batch counts.
func CountedKind(name corev1.ResourceName) (schema.GroupResource, bool) {
	kind, ok := strings.CutPrefix(string(name), "count/")
	if !ok {
		return schema.GroupResource{}, false
	}
	return schema.ParseGroupResource(kind), true
}

// Write is a write to the API, as far as rules ask for it. One that is neither a
// creation nor an update takes nothing.
type Write struct {
	Create, Update bool
	Subresource    string
	Object, Old    runtime.Object // Old is nil for a creation
}

// Kind has the rules of one kind.
type Kind struct {
	Group schema.GroupResource

	counts   func(w Write) bool
	concerns func(name corev1.ResourceName) bool
	inScope  func(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error) // nil: the kind has no scopes
	usage    func(o runtime.Object, now time.Time) (corev1.ResourceList, error)
	missing  func(required []corev1.ResourceName, o runtime.Object) error // nil: nothing must be said
}

// Counts reports whether a write can change what is used.
func (k Kind) Counts(w Write) bool { return k.counts(w) }

// Concerns reports whether objects of the kind use the resource.
func (k Kind) Concerns(name corev1.ResourceName) bool { return k.concerns(name) }

// Scoped reports whether quotas with scopes can select objects of the kind.
func (k Kind) Scoped() bool { return k.inScope != nil }

// InScope reports whether o is in the scope s; an error says that s or o can't be read.
func (k Kind) InScope(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error) {
	if k.inScope == nil {
		return false, nil
	}
	return k.inScope(s, o)
}

// Usage returns what o uses at the time now; an error says that o is not of the kind.
func (k Kind) Usage(o runtime.Object, now time.Time) (corev1.ResourceList, error) {
	return k.usage(o, now)
}

// Missing returns an error that names what o must say when quotas limit the required resources.
func (k Kind) Missing(required []corev1.ResourceName, o runtime.Object) error {
	if k.missing == nil {
		return nil
	}
	return k.missing(required, o)
}

func count(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }

func writes(w Write) bool { return w.Subresource == "" && (w.Create || w.Update) }

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
