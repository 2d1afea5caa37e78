package validation

import (
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// devicePool checks what slices of one pool have in common.
func devicePool(p *resourcev1.ResourcePool, at *field.Path) field.ErrorList {
	errs := poolName(p.Name, at.Child("name"))
	if p.Generation < 0 {
		errs = append(errs, field.Invalid(at.Child("generation"), p.Generation, "must be greater than or equal to zero"))
	}
	return errs
}

// poolName checks the name of a pool: DNS names with slashes between them.
func poolName(name string, at *field.Path) field.ErrorList {
	const longest = 253
	if name == "" {
		return nil // a declared rule
	}
	var errs field.ErrorList
	if len(name) > longest {
		errs = append(errs, field.TooLong(at, "", longest))
	}
	for part := range strings.SplitSeq(name, "/") {
		errs = append(errs, messages(at, part, validation.IsDNS1123Subdomain(part))...)
	}
	return errs
}

// slicedDevice checks a device's taints and its conditions for being bound.
func slicedDevice(d *resourcev1.Device, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range d.Taints {
		at := at.Child("taints").Index(i)
		if t.Key != "" {
			errs = append(errs, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
		}
		errs = append(errs, messages(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
	}
	for _, list := range []struct {
		name       string
		conditions []string
	}{{"bindingConditions", d.BindingConditions}, {"bindingFailureConditions", d.BindingFailureConditions}} {
		seen := sets.New[string]()
		for i, c := range list.conditions {
			at := at.Child(list.name).Index(i)
			errs = append(errs, messages(at, c, validation.IsQualifiedName(c))...)
			if seen.Has(c) {
				errs = append(errs, field.Duplicate(at, c))
			}
			seen.Insert(c)
		}
	}
	switch some, failing := len(d.BindingConditions) > 0, len(d.BindingFailureConditions) > 0; {
	case some && !failing:
		errs = append(errs, field.Invalid(at.Child("bindingFailureConditions"), nil, "bindingFailureConditions are required to use bindingConditions"))
	case failing && !some:
		errs = append(errs, field.Invalid(at.Child("bindingConditions"), nil, "bindingConditions are required to use bindingFailureConditions"))
	}
	return errs
}
