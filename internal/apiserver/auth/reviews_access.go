package auth

import (
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// validateReview returns what is wrong with an access review; other kinds cannot be invalid.
func validateReview(obj runtime.Object) field.ErrorList {
	spec := field.NewPath("spec")
	switch o := obj.(type) {
	case *authorizationv1.SelfSubjectAccessReview:
		errs := validateAttributes(o.Spec.ResourceAttributes, o.Spec.NonResourceAttributes, spec)
		return append(errs, validateNoMeta(o.ObjectMeta, "must be empty")...)
	case *authorizationv1.SubjectAccessReview:
		return append(validateAccess(o.Spec, spec), validateNoMeta(o.ObjectMeta, "must be empty")...)
	case *authorizationv1.LocalSubjectAccessReview:
		errs := validateAccess(o.Spec, spec)
		m := o.ObjectMeta
		m.Namespace = ""
		errs = append(errs, validateNoMeta(m, "must be empty except for namespace")...)
		if res := o.Spec.ResourceAttributes; res != nil && res.Namespace != o.Namespace {
			errs = append(errs,
				field.Invalid(spec.Child("resourceAttributes", "namespace"), res.Namespace,
					"must match metadata.namespace"))
		}
		if o.Spec.NonResourceAttributes != nil {
			errs = append(errs,
				field.Invalid(spec.Child("nonResourceAttributes"), shown(o.Spec.NonResourceAttributes),
					"disallowed on this kind of request"))
		}
		return errs
	}
	return nil
}

func validateNoMeta(m metav1.ObjectMeta, detail string) field.ErrorList {
	bare := m
	bare.ManagedFields = nil
	if equality.Semantic.DeepEqual(metav1.ObjectMeta{}, bare) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), m, detail)}
}

func validateAccess(s authorizationv1.SubjectAccessReviewSpec, at *field.Path) field.ErrorList {
	errs := oneOf(s.ResourceAttributes, s.NonResourceAttributes, at)
	if s.User == "" && len(s.Groups) == 0 {
		errs = append(errs, field.Invalid(at.Child("user"), s.User, "at least one of user or group must be specified"))
	}
	return append(errs, validateSelectors(s.ResourceAttributes, at)...)
}

func validateAttributes(res *authorizationv1.ResourceAttributes, non *authorizationv1.NonResourceAttributes,
	at *field.Path) field.ErrorList {
	return append(oneOf(res, non, at), validateSelectors(res, at)...)
}

func oneOf(res *authorizationv1.ResourceAttributes, non *authorizationv1.NonResourceAttributes,
	at *field.Path) field.ErrorList {
	if (res == nil) != (non == nil) {
		return nil
	}
	return field.ErrorList{field.Invalid(at, shown(non),
		"exactly one of nonResourceAttributes or resourceAttributes must be specified")}
}

// shown formats a value as in upstream's messages: with the names of its internal type.
func shown(non *authorizationv1.NonResourceAttributes) any {
	if non == nil {
		return (*struct{})(nil)
	}
	return &struct{ Path, Verb string }{non.Path, non.Verb}
}

func validateSelectors(res *authorizationv1.ResourceAttributes, at *field.Path) field.ErrorList {
	if res == nil {
		return nil
	}
	at = at.Child("resourceAttributes")
	var errs field.ErrorList
	if s, at := res.FieldSelector, at.Child("fieldSelector"); s != nil {
		errs = rawOrRequirements(s.RawSelector, len(s.Requirements), at)
		for i, q := range s.Requirements { // a newer client may know more operators
			errs = append(errs,
				metavalidation.ValidateFieldSelectorRequirement(q,
					metavalidation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true},
					at.Child("requirements").Index(i))...)
		}
	}
	if s, at := res.LabelSelector, at.Child("labelSelector"); s != nil {
		errs = append(errs, rawOrRequirements(s.RawSelector, len(s.Requirements), at)...)
		for i, q := range s.Requirements {
			errs = append(errs,
				metavalidation.ValidateLabelSelectorRequirement(q,
					metavalidation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true},
					at.Child("requirements").Index(i))...)
		}
	}
	return errs
}

func rawOrRequirements(raw string, requirements int, at *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(at.Child("rawSelector"), raw,
			"may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(at.Child("requirements"),
			fmt.Sprintf("when %s is specified, requirements or rawSelector is required", at))}
	}
	return nil
}

// resourceAttributes converts res to a request of u. Selectors that cannot be parsed are left out,
// which requests more, not less.
func resourceAttributes(u user.Info, res *authorizationv1.ResourceAttributes) authorizer.AttributesRecord {
	a := authorizer.AttributesRecord{
		User: u, ResourceRequest: true, Verb: res.Verb, Namespace: res.Namespace, APIGroup: res.Group,
		APIVersion: res.Version,
		Resource:   res.Resource, Subresource: res.Subresource, Name: res.Name,
	}
	if a.APIVersion == "" {
		a.APIVersion = "*"
	}
	if s := res.LabelSelector; s != nil {
		if s.RawSelector != "" {
			parsed, err := labels.Parse(s.RawSelector)
			if err == nil {
				a.LabelSelectorRequirements, _ = parsed.Requirements()
			}
			a.LabelSelectorParsingErr = err
		} else {
			a.LabelSelectorRequirements, a.LabelSelectorParsingErr = labelRequirements(s.Requirements)
		}
	}
	if s := res.FieldSelector; s != nil {
		if s.RawSelector != "" {
			parsed, err := fields.ParseSelector(s.RawSelector)
			if err == nil {
				a.FieldSelectorRequirements = parsed.Requirements()
			}
			a.FieldSelectorParsingErr = err
		} else {
			a.FieldSelectorRequirements, a.FieldSelectorParsingErr = fieldRequirements(s.Requirements)
		}
	}
	return a
}

func labelRequirements(list []metav1.LabelSelectorRequirement) (labels.Requirements, error) {
	operators := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var out labels.Requirements
	var errs []error
	for _, q := range list {
		op, ok := operators[q.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", q.Operator))
			continue
		}
		r, err := labels.NewRequirement(q.Key, op, q.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, *r)
	}
	return out, errors.Join(errs...)
}

func fieldRequirements(list []metav1.FieldSelectorRequirement) (fields.Requirements, error) {
	operators := map[metav1.FieldSelectorOperator]selection.Operator{metav1.FieldSelectorOpIn: selection.Equals,
		metav1.FieldSelectorOpNotIn: selection.NotEquals}
	var out fields.Requirements
	var errs []error
	for _, q := range list {
		op, ok := operators[q.Operator]
		if !ok || len(q.Values) != 1 {
			errs = append(errs,
				fmt.Errorf("field selector %s %q %q: only In and NotIn with exactly one value are supported", q.Key,
					q.Operator, q.Values))
			continue
		}
		out = append(out, fields.Requirement{Field: q.Key, Operator: op, Value: q.Values[0]})
	}
	return out, errors.Join(errs...)
}

// evaluationError is a review's note that its answer may be wrong.
func evaluationError(a authorizer.AttributesRecord, err error) string {
	var out []string
	if err != nil {
		out = append(out, err.Error())
	}
	ignored := func(what string, understood int, err error) {
		if err == nil {
			return
		}
		how := "ignored"
		if understood > 0 {
			how = "partially ignored"
		}
		out = append(out, fmt.Sprintf("spec.resourceAttributes.%s %s due to parse error", what, how))
	}
	ignored("fieldSelector", len(a.FieldSelectorRequirements), a.FieldSelectorParsingErr)
	ignored("labelSelector", len(a.LabelSelectorRequirements), a.LabelSelectorParsingErr)
	return strings.Join(out, "; ")
}
