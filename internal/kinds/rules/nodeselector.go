package rules

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// NodeSelector validates a required node selector. keptValues: values that are invalid as labels
// were stored before and may stay.
func NodeSelector(s *corev1.NodeSelector, keptValues bool, at *field.Path) field.ErrorList {
	if len(s.NodeSelectorTerms) == 0 {
		return field.ErrorList{field.Required(at.Child("nodeSelectorTerms"),
			"must have at least one node selector term")}
	}
	var errs field.ErrorList
	for i := range s.NodeSelectorTerms {
		errs = append(errs, NodeSelectorTerm(&s.NodeSelectorTerms[i], keptValues,
			at.Child("nodeSelectorTerms").Index(i))...)
	}
	return errs
}

// HasBadTerms reports whether a node selector has values that are invalid as labels.
func HasBadTerms(s *corev1.NodeSelector) bool {
	if s == nil {
		return false
	}
	for _, t := range s.NodeSelectorTerms {
		for _, r := range t.MatchExpressions {
			if slices.ContainsFunc(r.Values, func(v string) bool { return len(validation.IsValidLabelValue(v)) > 0 }) {
				return true
			}
		}
	}
	return false
}

// NodeSelectorTerm validates one term of a node selector; keptValues is described at NodeSelector.
func NodeSelectorTerm(t *corev1.NodeSelectorTerm, keptValues bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range t.MatchExpressions {
		r, at := &t.MatchExpressions[i], at.Child("matchExpressions").Index(i)
		switch r.Operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			if len(r.Values) == 0 {
				errs = append(errs,
					field.Required(at.Child("values"), "must be specified when `operator` is 'In' or 'NotIn'"))
			}
		case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
			if len(r.Values) > 0 {
				errs = append(errs,
					field.Forbidden(at.Child("values"),
						"may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
			}
		case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			if len(r.Values) != 1 {
				errs = append(errs,
					field.Required(at.Child("values"),
						"must be specified single value when `operator` is 'Lt' or 'Gt'"))
			}
		default:
			errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
		}
		errs = append(errs, metav1validation.ValidateLabelName(r.Key, at.Child("key"))...)
		for j, v := range r.Values {
			if !keptValues {
				errs = append(errs, Messages(at.Child("values").Index(j), v, validation.IsValidLabelValue(v))...)
			}
		}
	}
	for i := range t.MatchFields {
		r, at := &t.MatchFields[i], at.Child("matchFields").Index(i)
		switch r.Operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			if len(r.Values) != 1 {
				errs = append(errs,
					field.Required(at.Child("values"),
						"must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
			}
		default:
			errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
		}
		if r.Key != metav1.ObjectNameField {
			errs = append(errs, field.Invalid(at.Child("key"), r.Key, "not a valid field selector key"))
			continue
		}
		for j, v := range r.Values {
			errs = append(errs, Messages(at.Child("values").Index(j), v, apivalidation.NameIsDNSSubdomain(v, false))...)
		}
	}
	return errs
}
