package validation

import (
	policyv1 "k8s.io/api/policy/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func disruptionBudget(b *policyv1.PodDisruptionBudget) field.ErrorList { return budgetSpec(b, false) }

func budgetSpec(b *policyv1.PodDisruptionBudget, keptValues bool) field.ErrorList {
	var errs field.ErrorList
	if b.Spec.MinAvailable != nil && b.Spec.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(specPath, b.Spec, "minAvailable and maxUnavailable cannot be both set"))
	}
	errs = append(errs, amount(b.Spec.MinAvailable, specPath.Child("minAvailable"))...)
	errs = append(errs, amount(b.Spec.MaxUnavailable, specPath.Child("maxUnavailable"))...)
	errs = append(errs, metav1validation.ValidateLabelSelector(b.Spec.Selector, metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: keptValues}, specPath.Child("selector"))...)
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil {
		errs = append(errs, supported(string(*p), specPath.Child("unhealthyPodEvictionPolicy"), string(policyv1.AlwaysAllow), string(policyv1.IfHealthyBudget))...)
	}
	return errs
}

func disruptionBudgetUpdate(b, old *policyv1.PodDisruptionBudget) field.ErrorList {
	return budgetSpec(b, old.Spec.Selector != nil && hasBadValues(old.Spec.Selector))
}

func disruptionBudgetStatusUpdate(b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
	s := &b.Status
	errs := metav1validation.ValidateConditions(s.Conditions, statusPath.Child("conditions"))
	return append(errs, counts(count{"disruptionsAllowed", int64(s.DisruptionsAllowed)}, count{"currentHealthy", int64(s.CurrentHealthy)}, count{"desiredHealthy", int64(s.DesiredHealthy)},
		count{"expectedPods", int64(s.ExpectedPods)})...)
}
