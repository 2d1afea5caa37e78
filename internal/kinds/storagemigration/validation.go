package storagemigration

import (
	"strings"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateMigration(m *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	at := field.NewPath("spec", "resource")
	var errs field.ErrorList
	if r := m.Spec.Resource.Resource; r == "" {
		errs = append(errs, field.Required(at.Child("resource"), "resource is required to be set"))
	} else if msgs := validation.IsDNS1035Label(r); len(msgs) > 0 {
		errs = append(errs, field.Invalid(at.Child("resource"), r, strings.Join(msgs, ",")))
	}
	if g := m.Spec.Resource.Group; g != "" {
		if msgs := validation.IsDNS1123Subdomain(g); len(msgs) > 0 {
			errs = append(errs, field.Invalid(at.Child("group"), g, strings.Join(msgs, ",")))
		}
	}
	return errs
}

func validateMigrationUpdate(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	return append(validateMigration(m),
		apivalidation.ValidateImmutableField(m.Spec, old.Spec, field.NewPath("spec"))...)
}

// A finished migration does not change: neither its result nor its resource version.
func validateMigrationStatusUpdate(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	at := field.NewPath("status")
	var errs field.ErrorList
	if v := m.Status.ResourceVersion; v != "" {
		if _, err := resourceversion.CompareResourceVersion(v, v); err != nil {
			errs = append(errs, field.Invalid(at.Child("resourceVersion"), v, err.Error()))
		}
	}
	errs = append(errs, metav1validation.ValidateConditions(m.Status.Conditions, at.Child("conditions"))...)
	if was := old.Status.ResourceVersion; was != "" && was != m.Status.ResourceVersion {
		errs = append(errs, field.Invalid(at.Child("resourceVersion"), m.Status.ResourceVersion,
			apivalidation.FieldImmutableErrorMsg))
	}
	is := func(m *storagemigrationv1.StorageVersionMigration, t storagemigrationv1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
	}
	conditions := at.Child("conditions")
	if is(m, storagemigrationv1.MigrationSucceeded) && is(m, storagemigrationv1.MigrationFailed) {
		errs = append(errs, field.Invalid(conditions, m.Status.Conditions,
			"Both success and failed conditions cannot be true at the same time"))
	}
	if is(old, storagemigrationv1.MigrationSucceeded) && !is(m, storagemigrationv1.MigrationSucceeded) {
		errs = append(errs, field.Invalid(conditions, m.Status.Conditions,
			"Success condition cannot be set to false once it is true"))
	}
	if is(old, storagemigrationv1.MigrationFailed) && !is(m, storagemigrationv1.MigrationFailed) {
		errs = append(errs, field.Invalid(conditions, m.Status.Conditions,
			"Failed condition cannot be set to false once it is true"))
	}
	return errs
}
