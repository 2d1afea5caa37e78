package validation

import (
	"maps"
	"regexp"
	"slices"
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

// toleratedValues checks the values of tolerations.
func toleratedValues(list []resourcev1.DeviceToleration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range list {
		errs = append(errs, messages(at.Index(i).Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
	}
	return errs
}

var semanticVersion = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

// deviceQuality checks the name of what a device has: an identifier, perhaps after a driver's name and a slash.
func deviceQuality(name string, at *field.Path) field.ErrorList {
	const longest = 32
	domain, id, qualified := strings.Cut(name, "/")
	var errs field.ErrorList
	switch {
	case !qualified:
		id = domain
	case strings.Contains(id, "/"):
		return nil // a declared rule
	case domain == "":
		errs = append(errs, field.Invalid(at, "", "the domain must not be empty"))
	default:
		errs = append(errs, driverName(domain, at)...)
	}
	if qualified && id == "" {
		return append(errs, field.Invalid(at, "", "the name must not be empty"))
	}
	errs = append(errs, messages(at, id, validation.IsCIdentifier(id))...)
	if len(id) > longest {
		errs = append(errs, field.TooLong(at, "", longest))
	}
	return errs
}

// slicedDevice checks a device's taints and its conditions for being bound.
func slicedDevice(d *resourcev1.Device, kept bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range d.Taints {
		if kept {
			break // as it was stored
		}
		at := at.Child("taints").Index(i)
		if t.Key != "" {
			errs = append(errs, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
		}
		errs = append(errs, messages(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		if v := d.Attributes[name].VersionValue; v != nil && !semanticVersion.MatchString(*v) {
			errs = append(errs, field.Invalid(at.Child("attributes").Key(string(name)).Child("version"), *v, "must be a string compatible with semver.org spec 2.0.0"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		if kept {
			break
		}
		errs = append(errs, deviceQuality(string(name), at.Child("capacity"))...)
		p, at := d.Capacity[name].RequestPolicy, at.Child("capacity").Key(string(name)).Child("requestPolicy", "default")
		switch {
		case p == nil || p.Default != nil:
		case p.ValidRange != nil:
			errs = append(errs, field.Required(at, "required when validRange is defined"))
		case len(p.ValidValues) > 0:
			errs = append(errs, field.Required(at, "required when validValues is defined"))
		}
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
