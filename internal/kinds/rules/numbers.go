package rules

import (
	"strconv"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// SpecPath is the path of .spec.
var SpecPath = field.NewPath("spec")

// NonNegative rejects a number below zero; nil is valid.
func NonNegative[T int32 | int64](v *T, at *field.Path) field.ErrorList {
	if v == nil {
		return nil
	}
	return apivalidation.ValidateNonnegativeField(int64(*v), at)
}

// Amount validates a number or percentage.
func Amount(v *intstr.IntOrString, at *field.Path) field.ErrorList {
	switch {
	case v == nil:
		return nil
	case v.Type == intstr.Int:
		return apivalidation.ValidateNonnegativeField(int64(v.IntVal), at)
	}
	errs := Messages(at, v.StrVal, validation.IsValidPercent(v.StrVal))
	if n, err := intstr.GetScaledValueFromIntOrPercent(v, 100, false); len(errs) == 0 && err == nil && n > 100 {
		errs = append(errs, field.Invalid(at, v.StrVal, "must not be greater than 100%"))
	}
	return errs
}

// Zero reports whether a number or percentage is zero.
func Zero(v *intstr.IntOrString) bool {
	if v == nil {
		return true
	}
	if v.Type == intstr.String && len(validation.IsValidPercent(v.StrVal)) == 0 {
		n, _ := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
		return n == 0
	}
	return v.IntValue() == 0
}
