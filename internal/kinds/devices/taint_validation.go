package devices

import (
	resourcev1 "k8s.io/api/resource/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func validateDeviceTaintRule(r *resourcev1.DeviceTaintRule) field.ErrorList {
	return checkDeviceTaintRule(r, nil)
}

func validateDeviceTaintRuleUpdate(r, old *resourcev1.DeviceTaintRule) field.ErrorList {
	return checkDeviceTaintRule(r, &old.Spec.Taint)
}

// checkDeviceTaintRule validates a rule; was is its stored taint, nil for a new rule.
func checkDeviceTaintRule(r *resourcev1.DeviceTaintRule, was *resourcev1.DeviceTaint) field.ErrorList {
	at := field.NewPath("spec")
	var errs field.ErrorList
	if s, at := r.Spec.DeviceSelector, at.Child("deviceSelector"); s != nil {
		if s.Driver != nil {
			errs = append(errs, rules.DriverName(*s.Driver, at.Child("driver"))...)
		}
		if s.Pool != nil {
			errs = append(errs, validatePoolName(*s.Pool, at.Child("pool"))...)
		}
		if s.Device != nil {
			errs = append(errs, rules.Messages(at.Child("device"), *s.Device, validation.IsDNS1123Label(*s.Device))...)
		}
	}
	return append(errs, validateDeviceTaint(&r.Spec.Taint, was, at.Child("taint"))...)
}

func validateDeviceTaintRuleStatusUpdate(r, _ *resourcev1.DeviceTaintRule) field.ErrorList {
	return validateBoundedConditions(r.Status.Conditions, resourcev1.DeviceTaintRuleStatusMaxConditions,
		field.NewPath("status", "conditions"))
}

// deviceEffects are the effects of a taint, sorted.
var deviceEffects = []string{string(resourcev1.DeviceTaintEffectNoExecute),
	string(resourcev1.DeviceTaintEffectNoSchedule), string(resourcev1.DeviceTaintEffectNone)}

// validateDeviceTaint validates a taint. An effect that was stored before (was, nil for a new
// one) may be unknown to this version.
func validateDeviceTaint(t, was *resourcev1.DeviceTaint, at *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabelName(t.Key, at.Child("key"))
	errs = append(errs, rules.Messages(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
	if was == nil || was.Effect != t.Effect {
		errs = append(errs, rules.OneOf(string(t.Effect), at.Child("effect"), deviceEffects...)...)
	}
	return errs
}

func validateDeviceTolerations(list []resourcev1.DeviceToleration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range list {
		at := at.Index(i)
		if t.Key != "" {
			errs = append(errs, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
		}
		switch t.Operator {
		case resourcev1.DeviceTolerationOpExists:
			if t.Value != "" {
				errs = append(errs, field.Invalid(at.Child("value"), t.Value, "must be empty for operator `Exists`"))
			}
		case resourcev1.DeviceTolerationOpEqual:
			errs = append(errs, rules.Messages(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
		default:
			errs = append(errs,
				rules.OneOf(string(t.Operator), at.Child("operator"), string(resourcev1.DeviceTolerationOpEqual),
					string(resourcev1.DeviceTolerationOpExists))...)
		}
		if t.Effect != "" {
			errs = append(errs, rules.Supported(string(t.Effect), at.Child("effect"), deviceEffects...)...)
		}
	}
	return errs
}
