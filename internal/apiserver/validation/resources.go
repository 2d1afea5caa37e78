package validation

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

const notNegative = "must be greater than or equal to 0"

// resourceRequirements checks limits, requests and their relation.
func resourceRequirements(r *corev1.ResourceRequirements, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	limits, requests := at.Child("limits"), at.Child("requests")
	cpuOrMemory, hugePages := false, false
	note := func(name corev1.ResourceName) {
		cpuOrMemory = cpuOrMemory || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		hugePages = hugePages || resources.IsHugePages(name)
	}
	for _, name := range sortedNames(r.Limits) {
		q := r.Limits[name]
		note(name)
		errs = append(errs, resourceName(name, limits.Key(string(name)), true)...)
		errs = append(errs, quantity(name, q, limits.Key(string(name)))...)
	}
	for _, name := range sortedNames(r.Requests) {
		q := r.Requests[name]
		note(name)
		errs = append(errs, resourceName(name, requests.Key(string(name)), true)...)
		errs = append(errs, quantity(name, q, requests.Key(string(name)))...)
		limit, ok := r.Limits[name]
		whole := resources.IsExtended(name) || resources.IsHugePages(name)
		switch {
		case !ok && whole:
			errs = append(errs, field.Required(limits, "Limit must be set for non overcommitable resources"))
		case ok && whole && q.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(requests, q.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case ok && q.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(requests, q.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		}
	}
	if hugePages && !cpuOrMemory {
		errs = append(errs, field.Forbidden(at, "HugePages require cpu or memory"))
	}
	return errs
}

func sortedNames(l corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(l))
	for name := range l {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// resourceName checks the name of a resource. container says that the list belongs to a container, where fewer standard
// names make sense than in a quota.
func resourceName(name corev1.ResourceName, at *field.Path, container bool) field.ErrorList {
	errs := messages(at, string(name), validation.IsQualifiedName(string(name)))
	if len(errs) > 0 {
		return errs
	}
	if strings.Contains(string(name), "/") {
		if container && !resources.IsExtended(name) && !strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix) {
			errs = append(errs, field.Invalid(at, name, "doesn't follow extended resource name standard"))
		}
		return errs
	}
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return nil
	case corev1.ResourceStorage, corev1.ResourceQuotas, corev1.ResourcePods, corev1.ResourceServices, corev1.ResourceReplicationControllers,
		corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims:
		if !container {
			return nil
		}
		return field.ErrorList{field.Invalid(at, name, "must be a standard resource for containers")}
	}
	if resources.IsHugePages(name) {
		return nil
	}
	if container {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource type or fully qualified"))
		return append(errs, field.Invalid(at, name, "must be a standard resource for containers"))
	}
	return field.ErrorList{field.Invalid(at, name, "must be a standard resource type or fully qualified")}
}

// quantity checks the amount of one resource.
func quantity(name corev1.ResourceName, q resource.Quantity, at *field.Path) field.ErrorList {
	if q.Sign() < 0 {
		return field.ErrorList{field.Invalid(at, q.String(), notNegative)}
	}
	if integral(name) && q.MilliValue()%1000 != 0 {
		return field.ErrorList{field.Invalid(at, q.String(), "must be an integer")}
	}
	if resources.IsHugePages(name) {
		size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
		if err != nil || size.Sign() <= 0 {
			return field.ErrorList{field.Invalid(at, q.String(), fmt.Sprintf("invalid hugepage size in resource name %q", name))}
		}
		if q.Value()%size.Value() != 0 {
			return field.ErrorList{field.Invalid(at, q.String(), "hugepage size must be a multiple of its page size")}
		}
	}
	return nil
}

// integral tells whether only whole numbers of a resource make sense.
func integral(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers, corev1.ResourceSecrets,
		corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers:
		return true
	}
	return resources.IsExtended(name)
}

func nonNegativeQuantity(q resource.Quantity, at *field.Path) field.ErrorList {
	if q.Sign() < 0 {
		return field.ErrorList{field.Invalid(at, q.String(), notNegative)}
	}
	return nil
}
