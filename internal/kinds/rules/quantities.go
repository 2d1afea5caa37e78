package rules

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/core/resources"
)

// NotNegative is the error for a number below zero.
const NotNegative = "must be greater than or equal to 0"

// ResourceRequirements validates limits, requests, and their relation. keptPages: fractions of huge
// pages were stored before and may stay.
func ResourceRequirements(r *corev1.ResourceRequirements, keptPages bool, at *field.Path) field.ErrorList {
	return requirements(r, keptPages, at,
		func(name corev1.ResourceName, at *field.Path) field.ErrorList { return ResourceName(name, at, true) })
}

// WholeRequirements validates pod-level limits and requests.
func WholeRequirements(r *corev1.ResourceRequirements, keptPages bool, at *field.Path) field.ErrorList {
	return requirements(r, keptPages, at, func(name corev1.ResourceName, at *field.Path) field.ErrorList {
		errs := ResourceName(name, at, false)
		if len(errs) == 0 && name != corev1.ResourceCPU && name != corev1.ResourceMemory &&
			!resources.IsHugePages(name) {
			errs = append(errs,
				field.NotSupported(at, name,
					[]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceHugePagesPrefix, corev1.ResourceMemory}))
		}
		return errs
	})
}

func requirements(r *corev1.ResourceRequirements, keptPages bool, at *field.Path,
	checkName func(corev1.ResourceName, *field.Path) field.ErrorList) field.ErrorList {
	var errs field.ErrorList
	limits, requests := at.Child("limits"), at.Child("requests")
	cpuOrMemory, hugePages := false, false
	note := func(name corev1.ResourceName) {
		cpuOrMemory = cpuOrMemory || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		hugePages = hugePages || resources.IsHugePages(name)
	}
	for _, name := range SortedNames(r.Limits) {
		q := r.Limits[name]
		note(name)
		errs = append(errs, checkName(name, limits.Key(string(name)))...)
		errs = append(errs, quantity(name, q, keptPages, limits.Key(string(name)))...)
	}
	for _, name := range SortedNames(r.Requests) {
		q := r.Requests[name]
		note(name)
		errs = append(errs, checkName(name, requests.Key(string(name)))...)
		errs = append(errs, quantity(name, q, keptPages, requests.Key(string(name)))...)
		limit, ok := r.Limits[name]
		whole := !IsNative(name) || resources.IsHugePages(name)
		switch {
		case !ok && whole:
			errs = append(errs, field.Required(limits, "Limit must be set for non overcommitable resources"))
		case ok && whole && q.Cmp(limit) != 0:
			errs = append(errs,
				field.Invalid(requests, q.String(),
					fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case ok && q.Cmp(limit) > 0:
			errs = append(errs,
				field.Invalid(requests, q.String(),
					fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		}
	}
	if hugePages && !cpuOrMemory {
		errs = append(errs, field.Forbidden(at, "HugePages require cpu or memory"))
	}
	return errs
}

// SortedNames returns the resource names in a list, sorted, so that errors have a fixed order.
func SortedNames(l corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(l))
	for name := range l {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// ResourceName validates the name of a resource. container: the list belongs to a container, which
// has fewer standard resources than a quota.
func ResourceName(name corev1.ResourceName, at *field.Path, container bool) field.ErrorList {
	errs := Messages(at, name, validation.IsQualifiedName(string(name)))
	plain := !strings.Contains(string(name), "/")
	if len(errs) == 0 && plain && name != corev1.ResourceStorage && !IsQuotaResource(name) {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource type or fully qualified"))
	}
	switch {
	case !container:
	case plain && name != corev1.ResourceCPU && name != corev1.ResourceMemory &&
		name != corev1.ResourceEphemeralStorage && !resources.IsHugePages(name):
		errs = append(errs, field.Invalid(at, name, "must be a standard resource for containers"))
	case !IsNative(name) && !Extendable(name):
		errs = append(errs, field.Invalid(at, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

// IsQuotaResource reports whether a name without a prefix is a resource of quotas.
func IsQuotaResource(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
		corev1.ResourceRequestsStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage:
		return true
	}
	return counted(name) || resources.IsHugePages(name) ||
		strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

// AmountOf validates the amount of one resource anywhere.
func AmountOf(name corev1.ResourceName, q resource.Quantity, at *field.Path) field.ErrorList {
	errs := NonNegativeQuantity(q, at)
	if integral(name) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(at, q, "must be an integer"))
	}
	return errs
}

// quantity validates the amount of one resource of a pod.
func quantity(name corev1.ResourceName, q resource.Quantity, keptPages bool, at *field.Path) field.ErrorList {
	errs := AmountOf(name, q, at)
	if !keptPages && !WholePages(name, q) {
		errs = append(errs, field.Invalid(at, q.String(),
			fmt.Sprintf("%s is not positive integer multiple of %s", q.String(), name)))
	}
	return errs
}

// WholePages reports whether an amount of huge pages is a multiple of the size in their name.
func WholePages(name corev1.ResourceName, q resource.Quantity) bool {
	if !resources.IsHugePages(name) {
		return true
	}
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	return err == nil && size.Sign() > 0 && size.MilliValue()%1000 == 0 && q.Value()%size.Value() == 0
}

// integral reports whether a resource has only whole numbers.
func integral(name corev1.ResourceName) bool {
	return counted(name) || Extendable(name)
}

// counted reports whether a resource is a number of objects.
func counted(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
		corev1.ResourceSecrets,
		corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims, corev1.ResourceServicesNodePorts,
		corev1.ResourceServicesLoadBalancers:
		return true
	}
	return false
}

// NonNegativeQuantity rejects an amount below zero.
func NonNegativeQuantity(q resource.Quantity, at *field.Path) field.ErrorList {
	if q.Sign() < 0 {
		return field.ErrorList{field.Invalid(at, q.String(), NotNegative)}
	}
	return nil
}

// ValidQuantity rejects a negative amount.
func ValidQuantity(q resource.Quantity, at *field.Path) field.ErrorList {
	if q.Value() < 0 {
		return field.ErrorList{field.Invalid(at, q.Value(), "must be a valid resource quantity")}
	}
	return nil
}

// IsNative reports whether a resource is one of Kubernetes' own.
func IsNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// Extendable reports whether a resource of this name can be an extended resource, which a quota can
// name, too.
func Extendable(name corev1.ResourceName) bool {
	return !IsNative(name) && resources.IsExtended(name) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}
