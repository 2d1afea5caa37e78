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
func resourceRequirements(r *corev1.ResourceRequirements, kept podFaults, at *field.Path) field.ErrorList {
	return requirements(r, kept, at, func(name corev1.ResourceName, at *field.Path) field.ErrorList { return resourceName(name, at, true) })
}

// wholeRequirements checks limits and requests of a pod as a whole.
func wholeRequirements(r *corev1.ResourceRequirements, kept podFaults, at *field.Path) field.ErrorList {
	return requirements(r, kept, at, func(name corev1.ResourceName, at *field.Path) field.ErrorList {
		errs := resourceName(name, at, false)
		if len(errs) == 0 && name != corev1.ResourceCPU && name != corev1.ResourceMemory && !resources.IsHugePages(name) {
			errs = append(errs, field.NotSupported(at, name, []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceHugePagesPrefix, corev1.ResourceMemory}))
		}
		return errs
	})
}

func requirements(r *corev1.ResourceRequirements, kept podFaults, at *field.Path, checkName func(corev1.ResourceName, *field.Path) field.ErrorList) field.ErrorList {
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
		errs = append(errs, checkName(name, limits.Key(string(name)))...)
		errs = append(errs, quantity(name, q, kept, limits.Key(string(name)))...)
	}
	for _, name := range sortedNames(r.Requests) {
		q := r.Requests[name]
		note(name)
		errs = append(errs, checkName(name, requests.Key(string(name)))...)
		errs = append(errs, quantity(name, q, kept, requests.Key(string(name)))...)
		limit, ok := r.Limits[name]
		whole := !isNative(name) || resources.IsHugePages(name)
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
	errs := messages(at, name, validation.IsQualifiedName(string(name)))
	plain := !strings.Contains(string(name), "/")
	if len(errs) == 0 && plain && name != corev1.ResourceStorage && !isQuotaResource(name) {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource type or fully qualified"))
	}
	switch {
	case !container:
	case plain && name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage && !resources.IsHugePages(name):
		errs = append(errs, field.Invalid(at, name, "must be a standard resource for containers"))
	case !isNative(name) && !extendable(name):
		errs = append(errs, field.Invalid(at, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

// isQuotaResource tells whether a name without a prefix is one that quotas know.
func isQuotaResource(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceRequestsStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage:
		return true
	}
	return counted(name) || resources.IsHugePages(name) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

// amountOf checks the amount of one resource, wherever it may be.
func amountOf(name corev1.ResourceName, q resource.Quantity, at *field.Path) field.ErrorList {
	errs := nonNegativeQuantity(q, at)
	if integral(name) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(at, q, "must be an integer"))
	}
	return errs
}

// quantity checks the amount of one resource of a pod.
func quantity(name corev1.ResourceName, q resource.Quantity, kept podFaults, at *field.Path) field.ErrorList {
	errs := amountOf(name, q, at)
	if !kept.hugePages && !wholePages(name, q) {
		errs = append(errs, field.Invalid(at, q.String(), fmt.Sprintf("%s is not positive integer multiple of %s", q.String(), name)))
	}
	return errs
}

// wholePages tells whether an amount of huge pages is a number of pages of the size in their name.
func wholePages(name corev1.ResourceName, q resource.Quantity) bool {
	if !resources.IsHugePages(name) {
		return true
	}
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	return err == nil && size.Sign() > 0 && size.MilliValue()%1000 == 0 && q.Value()%size.Value() == 0
}

// hasBrokenPages tells whether a pod asks for parts of huge pages.
func hasBrokenPages(s *corev1.PodSpec) bool {
	broken := func(list corev1.ResourceList) bool {
		for name, q := range list {
			if !wholePages(name, q) {
				return true
			}
		}
		return false
	}
	for c := range containersOf(s, specPath) {
		if broken(c.Resources.Limits) || broken(c.Resources.Requests) {
			return true
		}
	}
	return broken(s.Overhead)
}

// integral tells whether only whole numbers of a resource make sense.
func integral(name corev1.ResourceName) bool {
	return counted(name) || extendable(name)
}

// counted tells whether a resource is a number of objects.
func counted(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers, corev1.ResourceSecrets,
		corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers:
		return true
	}
	return false
}

func nonNegativeQuantity(q resource.Quantity, at *field.Path) field.ErrorList {
	if q.Sign() < 0 {
		return field.ErrorList{field.Invalid(at, q.String(), notNegative)}
	}
	return nil
}

// validQuantity refuses less than nothing.
func validQuantity(q resource.Quantity, at *field.Path) field.ErrorList {
	if q.Value() < 0 {
		return field.ErrorList{field.Invalid(at, q.Value(), "must be a valid resource quantity")}
	}
	return nil
}

// isNative tells whether Kubernetes itself names a resource.
func isNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// extendable tells whether a resource of this name can be asked for that Kubernetes does not know; a quota, too, can name it.
func extendable(name corev1.ResourceName) bool {
	return !isNative(name) && resources.IsExtended(name) && len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}
