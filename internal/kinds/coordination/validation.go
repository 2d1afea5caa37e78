package coordination

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func validateLease(l *coordinationv1.Lease) field.ErrorList {
	at := field.NewPath("spec")
	var errs field.ErrorList
	if s := l.Spec.LeaseDurationSeconds; s != nil && *s <= 0 {
		errs = append(errs, field.Invalid(at.Child("leaseDurationSeconds"), *s, "must be greater than 0"))
	}
	if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(at.Child("leaseTransitions"), *n, rules.NotNegative))
	}
	return errs
}

func validateLeaseUpdate(l, _ *coordinationv1.Lease) field.ErrorList { return validateLease(l) }
