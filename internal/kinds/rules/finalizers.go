package rules

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Finalizers validates the additional rules of built-in kinds for finalizers: a name without a
// prefix must be one of Kubernetes' own.
func Finalizers(names []string) field.ErrorList {
	var errs field.ErrorList
	for i, n := range names {
		if strings.Contains(n, "/") || n == string(corev1.FinalizerKubernetes) ||
			n == metav1.FinalizerOrphanDependents || n == metav1.FinalizerDeleteDependents {
			continue
		}
		errs = append(errs, field.Invalid(field.NewPath("metadata", "finalizers").Index(i), n,
			"name is neither a standard finalizer name nor is it fully qualified"))
	}
	return errs
}

// FinalizerName validates the form of a finalizer's name; one without a prefix must be one of
// Kubernetes' own.
func FinalizerName(name string, at *field.Path) field.ErrorList {
	errs := Messages(at, name, validation.IsQualifiedName(name))
	if strings.Contains(name, "/") || name == string(corev1.FinalizerKubernetes) ||
		name == metav1.FinalizerOrphanDependents || name == metav1.FinalizerDeleteDependents {
		return errs
	}
	return append(errs, field.Invalid(at, name, "name is neither a standard finalizer name nor is it fully qualified"))
}
