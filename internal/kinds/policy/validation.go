package policy

import (
	policyv1 "k8s.io/api/policy/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func validateDisruptionBudget(b *policyv1.PodDisruptionBudget) field.ErrorList {
	return validateBudgetSpec(b, false)
}

func validateBudgetSpec(b *policyv1.PodDisruptionBudget, keptValues bool) field.ErrorList {
	var errs field.ErrorList
	if b.Spec.MinAvailable != nil && b.Spec.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(rules.SpecPath, b.Spec, "minAvailable and maxUnavailable cannot be both set"))
	}
	errs = append(errs, rules.Amount(b.Spec.MinAvailable, rules.SpecPath.Child("minAvailable"))...)
	errs = append(errs, rules.Amount(b.Spec.MaxUnavailable, rules.SpecPath.Child("maxUnavailable"))...)
	errs = append(errs, metav1validation.ValidateLabelSelector(b.Spec.Selector,
		metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: keptValues},
		rules.SpecPath.Child("selector"))...)
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil {
		errs = append(errs, rules.Supported(string(*p), rules.SpecPath.Child("unhealthyPodEvictionPolicy"),
			string(policyv1.AlwaysAllow), string(policyv1.IfHealthyBudget))...)
	}
	return errs
}

func validateDisruptionBudgetUpdate(b, old *policyv1.PodDisruptionBudget) field.ErrorList {
	return validateBudgetSpec(b, old.Spec.Selector != nil && rules.HasBadLabelValues(old.Spec.Selector))
}

func validateDisruptionBudgetStatusUpdate(b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
	s := &b.Status
	errs := metav1validation.ValidateConditions(s.Conditions, rules.StatusPath.Child("conditions"))
	return append(errs, rules.Counts(rules.Count("disruptionsAllowed", int64(s.DisruptionsAllowed)),
		rules.Count("currentHealthy", int64(s.CurrentHealthy)), rules.Count("desiredHealthy", int64(s.DesiredHealthy)),
		rules.Count("expectedPods", int64(s.ExpectedPods)))...)
}
