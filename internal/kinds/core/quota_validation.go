package core

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/core/resources"
	"carob/internal/kinds/rules"
)

func validateLimitRange(l *corev1.LimitRange) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[corev1.LimitType]()
	for i := range l.Spec.Limits {
		it, at := &l.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, validateLimitType(it.Type, at.Child("type"))...)
		if seen.Has(it.Type) {
			errs = append(errs, field.Duplicate(at.Child("type"), it.Type))
		}
		seen.Insert(it.Type)
		if it.Type == corev1.LimitTypePod {
			const not = "may not be specified when `type` is 'Pod'"
			if len(it.Default) > 0 {
				errs = append(errs, field.Forbidden(at.Child("default"), not))
			}
			if len(it.DefaultRequest) > 0 {
				errs = append(errs, field.Forbidden(at.Child("defaultRequest"), not))
			}
		}
		if it.Type == corev1.LimitTypePersistentVolumeClaim {
			_, low := it.Min[corev1.ResourceStorage]
			_, high := it.Max[corev1.ResourceStorage]
			if !low && !high {
				errs = append(errs,
					field.Required(at.Child("limits"),
						"either minimum or maximum storage value is required, but neither was provided"))
			}
		}
		errs = append(errs, validateLimitAmounts(it, at)...)
	}
	return errs
}

func validateLimitType(t corev1.LimitType, at *field.Path) field.ErrorList {
	errs := rules.Messages(at, t, validation.IsQualifiedName(string(t)))
	if len(errs) > 0 || strings.Contains(string(t), "/") {
		return errs
	}
	if t != corev1.LimitTypePod && t != corev1.LimitTypeContainer && t != corev1.LimitTypePersistentVolumeClaim {
		errs = append(errs, field.Invalid(at, t, "must be a standard limit type or fully qualified"))
	}
	return errs
}

// validateLimitAmounts validates the resource names, and that min, defaults, and max are in
// ascending order.
func validateLimitAmounts(it *corev1.LimitRangeItem, at *field.Path) field.ErrorList {
	defaultRequest, defaults := it.DefaultRequest, it.Default
	if it.Type == corev1.LimitTypePod { // they are rejected as a whole
		defaultRequest, defaults = nil, nil
	}
	var errs field.ErrorList
	all := corev1.ResourceList{}
	for _, list := range []struct {
		name    string
		amounts corev1.ResourceList
	}{{"max", it.Max}, {"min", it.Min}, {"default", defaults}, {"defaultRequest", defaultRequest},
		{"maxLimitRequestRatio", it.MaxLimitRequestRatio}} {
		for _, name := range rules.SortedNames(list.amounts) {
			errs = append(errs,
				rules.ResourceName(name, at.Child(list.name).Key(string(name)),
					it.Type == corev1.LimitTypePod || it.Type == corev1.LimitTypeContainer)...)
			all[name] = list.amounts[name]
		}
	}
	for _, name := range rules.SortedNames(all) {
		for _, order := range []struct {
			low, high         corev1.ResourceList
			lowName, highName string
			field             string
			ofHigh            bool // the error shows the higher amount
		}{
			{it.Min, it.Max, "min", "max", "min", false},
			{it.Min, defaultRequest, "min", "default request", "defaultRequest", true},
			{defaultRequest, it.Max, "default request", "max", "defaultRequest", false},
			{defaultRequest, defaults, "default request", "default limit", "defaultRequest", false},
			{it.Min, defaults, "min", "default", "default", false},
			{defaults, it.Max, "default", "max", "default", true},
		} {
			low, isLow := order.low[name]
			high, isHigh := order.high[name]
			if !isLow || !isHigh || low.Cmp(high) <= 0 {
				continue
			}
			shown := low
			if order.ofHigh {
				shown = high
			}
			errs = append(errs,
				field.Invalid(at.Child(order.field).Key(string(name)), shown,
					fmt.Sprintf("%s value %s is greater than %s value %s", order.lowName, low.String(), order.highName,
						high.String())))
		}
		if ratio, ok := it.MaxLimitRequestRatio[name]; ok {
			errs = append(errs,
				validateLimitRatio(ratio, it, name, at.Child("maxLimitRequestRatio").Key(string(name)))...)
		}
		request, isRequest := defaultRequest[name]
		limit, isLimit := defaults[name]
		if isRequest && isLimit && request.Cmp(limit) != 0 &&
			(resources.IsExtended(name) || resources.IsHugePages(name)) {
			errs = append(errs,
				field.Invalid(at.Child("defaultRequest").Key(string(name)), request,
					fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", limit.String(),
						request.String(), name)))
		}
	}
	return errs
}

// validateLimitRatio validates the maximum ratio of limits to requests.
func validateLimitRatio(ratio resource.Quantity, it *corev1.LimitRangeItem, name corev1.ResourceName,
	at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ratio.Cmp(resource.MustParse("1")) < 0 {
		errs = append(errs, field.Invalid(at, ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String())))
	}
	low, isLow := it.Min[name]
	high, isHigh := it.Max[name]
	if !isLow || !isHigh {
		return errs
	}
	// In thousandths as long as they fit in 64 bits.
	amount := func(q resource.Quantity) float64 { return float64(q.Value()) }
	if max(ratio.Value(), low.Value(), high.Value()) < resource.MaxMilliValue {
		amount = func(q resource.Quantity) float64 { return float64(q.MilliValue()) / 1000 }
	}
	if most := amount(high) / amount(low); amount(ratio) > most {
		errs = append(errs,
			field.Invalid(at, ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), most)))
	}
	return errs
}

func validateResourceQuota(q *corev1.ResourceQuota) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateQuotaAmounts(q.Spec.Hard, spec.Child("hard"))
	at := spec.Child("scopes")
	for _, scope := range q.Spec.Scopes {
		if !isScope(scope) {
			errs = append(errs, field.Invalid(at, q.Spec.Scopes, "unsupported scope"))
		}
		errs = append(errs, validateScopeFits(scope, q.Spec.Hard, at, q.Spec.Scopes)...)
	}
	errs = append(errs, validateScopeConflicts(sets.New(q.Spec.Scopes...), at, q.Spec.Scopes)...)
	if q.Spec.ScopeSelector != nil {
		errs = append(errs, validateScopeSelector(&q.Spec, spec.Child("scopeSelector", "matchExpressions"))...)
	}
	return errs
}

func validateScopeSelector(s *corev1.ResourceQuotaSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	scopes := sets.New[corev1.ResourceQuotaScope]()
	for _, r := range s.ScopeSelector.MatchExpressions {
		scopes.Insert(r.ScopeName)
		if !isScope(r.ScopeName) {
			errs = append(errs, field.Invalid(at.Child("scopeName"), r.ScopeName, "unsupported scope"))
		}
		errs = append(errs, validateScopeFits(r.ScopeName, s.Hard, at, s.ScopeSelector)...)
		switch r.ScopeName {
		case corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort,
			corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
			corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
			if r.Operator != corev1.ScopeSelectorOpExists {
				errs = append(errs, field.Invalid(at.Child("operator"), r.Operator,
					"must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"))
			}
		}
		switch r.Operator {
		case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
			if len(r.Values) == 0 {
				errs = append(errs,
					field.Required(at.Child("values"),
						"must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
			}
		case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
			if len(r.Values) > 0 {
				errs = append(errs,
					field.Invalid(at.Child("values"), r.Values,
						"must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"))
			}
		default:
			errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
		}
	}
	return append(errs, validateScopeConflicts(scopes, at, s.Scopes)...)
}

func isScope(s corev1.ResourceQuotaScope) bool {
	switch s {
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
		corev1.ResourceQuotaScopeVolumeAttributesClass:
		return true
	}
	return false
}

// validateScopeFits checks that a scope is valid for all limited resources.
func validateScopeFits(s corev1.ResourceQuotaScope, hard corev1.ResourceList, at *field.Path,
	shown any) field.ErrorList {
	fitting := []corev1.ResourceName{corev1.ResourcePods}
	switch s {
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopePriorityClass,
		corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		fitting = append(fitting, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceLimitsCPU,
			corev1.ResourceLimitsMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory)
	case corev1.ResourceQuotaScopeBestEffort:
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		fitting = []corev1.ResourceName{corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage}
	default:
		return nil
	}
	var errs field.ErrorList
	for _, name := range rules.SortedNames(hard) {
		if rules.IsQuotaResource(name) && !slices.Contains(fitting, name) {
			errs = append(errs, field.Invalid(at, shown, "unsupported scope applied to resource"))
		}
	}
	return errs
}

func validateScopeConflicts(scopes sets.Set[corev1.ResourceQuotaScope], at *field.Path, shown any) field.ErrorList {
	var errs field.ErrorList
	for _, pair := range [][]corev1.ResourceQuotaScope{{corev1.ResourceQuotaScopeBestEffort,
		corev1.ResourceQuotaScopeNotBestEffort},
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating}} {
		if scopes.HasAll(pair...) {
			errs = append(errs, field.Invalid(at, shown, "conflicting scopes"))
		}
	}
	return errs
}

func validateQuotaAmounts(list corev1.ResourceList, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range rules.SortedNames(list) {
		at := at.Key(string(name))
		errs = append(errs, rules.ResourceName(name, at, false)...)
		if !strings.Contains(string(name), "/") && !rules.IsQuotaResource(name) {
			errs = append(errs, field.Invalid(at, name, "must be a standard resource for quota"))
		}
		errs = append(errs, rules.AmountOf(name, list[name], at)...)
	}
	return errs
}

func validateResourceQuotaUpdate(q, old *corev1.ResourceQuota) field.ErrorList {
	errs := validateResourceQuota(q)
	if !sets.New(q.Spec.Scopes...).Equal(sets.New(old.Spec.Scopes...)) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "scopes"), q.Spec.Scopes,
			apivalidation.FieldImmutableErrorMsg))
	}
	return errs
}

func validateResourceQuotaStatusUpdate(q, _ *corev1.ResourceQuota) field.ErrorList {
	at := field.NewPath("status")
	return append(validateQuotaAmounts(q.Status.Hard, at.Child("hard")),
		validateQuotaAmounts(q.Status.Used, at.Child("used"))...)
}
