package rules

import (
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ImmutableSelector rejects a change of a selector.
func ImmutableSelector(new, old any, at *field.Path) field.ErrorList {
	if apiequality.Semantic.DeepEqual(new, old) {
		return nil
	}
	return field.ErrorList{field.Invalid(at, new, apivalidation.FieldImmutableErrorMsg)}
}

// HasBadLabelValues reports whether a selector has values that are invalid as labels.
func HasBadLabelValues(s *metav1.LabelSelector) bool {
	for _, r := range s.MatchExpressions {
		for _, v := range r.Values {
			if len(validation.IsValidLabelValue(v)) > 0 {
				return true
			}
		}
	}
	return false
}
