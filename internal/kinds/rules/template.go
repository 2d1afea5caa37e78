package rules

import (
	"reflect"
	"unicode"
	"unicode/utf8"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TemplateMeta validates the metadata in a template: created objects get labels and annotations
// from it, the rest from their creator.
func TemplateMeta(m *metav1.ObjectMeta, at *field.Path) field.ErrorList {
	errs := apivalidation.ValidateAnnotations(m.Annotations, at.Child("annotations"))
	errs = append(errs, metav1validation.ValidateLabels(m.Labels, at.Child("labels"))...)
	for f, value := range reflect.ValueOf(m).Elem().Fields() {
		if f.Name == "Labels" || f.Name == "Annotations" || value.IsZero() {
			continue
		}
		first, n := utf8.DecodeRuneInString(f.Name)
		errs = append(errs, field.Forbidden(at.Child(string(unicode.ToLower(first))+f.Name[n:]), "cannot be set"))
	}
	return errs
}
