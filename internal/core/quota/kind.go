// Package quota computes the quota usage of objects: which resources a kind concerns, how much of
// them an object uses, and which scopes it is in.
//
// It is pure. Admission and the quota controller drive it through base/quotaevaluator, which adapts
// the rules of a kind to the evaluator interface of k8s.io/apiserver/pkg/quota/v1, so that both
// count in the same way.
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

// Ignored are the kinds that no quota counts.
func Ignored() map[schema.GroupResource]struct{} {
	return map[schema.GroupResource]struct{}{
		{Resource: "events"}: {}, {Group: "events.k8s.io", Resource: "events"}: {},
		{Resource: "bindings"}: {}, {Resource: "componentstatuses"}: {}, {Resource: "namespaces"}: {},
		{Group: "authentication.k8s.io", Resource: "tokenreviews"}:             {},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}:      {},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}: {},
		{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}:  {},
		{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"}:   {},
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: {},
		{Group: "apiregistration.k8s.io", Resource: "apiservices"}:             {},
	}
}

// Kinds returns the rules of the kinds with usage other than the object count. Without a look, ResourceClaims use no
// extended resources.
func Kinds(look Lookup) []Kind {
	return []Kind{podRules(), serviceRules(), volumeClaimRules(), deviceClaimRules(look)}
}

// OldNames returns the kinds that are also counted under an old name in addition to count/…: the
// resource name is the name of the kind.
func OldNames() []corev1.ResourceName {
	return []corev1.ResourceName{corev1.ResourceConfigMaps, corev1.ResourceQuotas,
		corev1.ResourceReplicationControllers, corev1.ResourceSecrets}
}

// CountedKind returns the kind for a resource name such as count/jobs.batch.
func CountedKind(name corev1.ResourceName) (schema.GroupResource, bool) {
	kind, ok := strings.CutPrefix(string(name), "count/")
	if !ok {
		return schema.GroupResource{}, false
	}
	return schema.ParseGroupResource(kind), true
}

// Write holds the facts of an API write that rules need. One that is neither a create nor an update
// uses nothing.
type Write struct {
	Create, Update bool
	Subresource    string
	Object, Old    runtime.Object // Old is nil for a create
}

// Kind has the rules of one kind.
type Kind struct {
	Group schema.GroupResource

	counts   func(w Write) bool
	concerns func(name corev1.ResourceName) bool
	// nil: the kind has no scopes
	inScope func(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error)
	usage   func(o runtime.Object, now time.Time) (corev1.ResourceList, error)
	missing func(required []corev1.ResourceName, o runtime.Object) error // nil: nothing is required
}

// Counts reports whether a write can change the usage.
func (k Kind) Counts(w Write) bool { return k.counts(w) }

// Concerns reports whether objects of the kind use the resource.
func (k Kind) Concerns(name corev1.ResourceName) bool { return k.concerns(name) }

// Scoped reports whether quotas with scopes can select objects of the kind.
func (k Kind) Scoped() bool { return k.inScope != nil }

// InScope reports whether o is in the scope s; an error means that s or o is invalid.
func (k Kind) InScope(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error) {
	if k.inScope == nil {
		return false, nil
	}
	return k.inScope(s, o)
}

// Usage returns what o uses at the time now; an error means that o is not of the kind.
func (k Kind) Usage(o runtime.Object, now time.Time) (corev1.ResourceList, error) {
	return k.usage(o, now)
}

// Missing returns an error with the fields that o must set if quotas limit the required resources.
func (k Kind) Missing(required []corev1.ResourceName, o runtime.Object) error {
	if k.missing == nil {
		return nil
	}
	return k.missing(required, o)
}

func count(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }

func writes(w Write) bool { return w.Subresource == "" && (w.Create || w.Update) }

// asSelector converts a scope's requirement to one on labels with the scope's name.
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
