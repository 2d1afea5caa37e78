package devices

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// selectorFeatures are the CEL features of device selectors, by the feature gates of Kubernetes
// 1.37.
var selectorFeatures = dracel.Features{EnableConsumableCapacity: true}

// validateDeviceSelectors compiles the expressions unless they are already stored. They must return
// a boolean, and must not cost more than the scheduler allows for one.
func validateDeviceSelectors(selectors []resourcev1.DeviceSelector, at *field.Path, compile bool) field.ErrorList {
	var errs field.ErrorList
	for i, s := range selectors {
		at := at.Index(i).Child("cel")
		if s.CEL == nil {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		if compile {
			errs = append(errs, validateDeviceExpression(s.CEL.Expression, at.Child("expression"))...)
		}
	}
	return errs
}

func validateDeviceExpression(expression string, at *field.Path) field.ErrorList {
	if len(expression) > resourcev1.CELSelectorExpressionMaxLength {
		return field.ErrorList{field.TooLong(at, "", resourcev1.CELSelectorExpressionMaxLength)}
	}
	// The first expression creates the compiler.
	result := dracel.GetCompiler(selectorFeatures).CompileCELExpression(expression,
		dracel.Options{EnvType: new(environment.NewExpressions)})
	switch {
	case result.Error == nil && result.MaxCost > resourcev1.CELSelectorExpressionMaxCost:
		return field.ErrorList{field.Forbidden(at, "too complex, exceeds cost limit")}
	case result.Error == nil:
		return nil
	case result.Error.Type == apiservercel.ErrorTypeRequired:
		return field.ErrorList{field.Required(at, result.Error.Detail)}
	case result.Error.Type == apiservercel.ErrorTypeInvalid:
		return field.ErrorList{field.Invalid(at, expression, result.Error.Detail)}
	}
	return field.ErrorList{field.InternalError(at, result.Error)}
}
