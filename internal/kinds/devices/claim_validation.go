package devices

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// The types' comments declare most rules of resource.k8s.io (package declarative). These are rules
// that comments cannot express: dependencies between fields.

func validateResourceClaim(c *resourcev1.ResourceClaim) field.ErrorList {
	return validateDeviceClaim(&c.Spec.Devices, field.NewPath("spec", "devices"))
}

func validateResourceClaimUpdate(c, old *resourcev1.ResourceClaim) field.ErrorList {
	return apivalidation.ValidateImmutableField(c.Spec, old.Spec, field.NewPath("spec"))
}

func validateResourceClaimTemplate(t *resourcev1.ResourceClaimTemplate) field.ErrorList {
	errs := rules.TemplateMeta(&t.Spec.ObjectMeta, field.NewPath("spec", "metadata"))
	return append(errs, validateDeviceClaim(&t.Spec.Spec.Devices, field.NewPath("spec", "spec", "devices"))...)
}

func validateResourceClaimTemplateUpdate(t, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
	return append(validateResourceClaimTemplate(t),
		apivalidation.ValidateImmutableField(t.Spec, old.Spec, field.NewPath("spec"))...)
}

// claimRequests are the names of a claim's requests, each with the names of its alternatives.
type claimRequests map[string]sets.Set[string]

func requestsOf(c *resourcev1.DeviceClaim) claimRequests {
	out := claimRequests{}
	for _, r := range c.Requests {
		out[r.Name] = sets.New[string]()
		for _, sub := range r.FirstAvailable {
			out[r.Name].Insert(sub.Name)
		}
	}
	return out
}

// reference validates a name of the form "request" or "request/alternative".
func (c claimRequests) reference(name string, at *field.Path) field.ErrorList {
	const form = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
	segments := strings.Split(name, "/")
	if len(segments) > 2 {
		return field.ErrorList{field.Invalid(at, name, form)}
	}
	var errs field.ErrorList
	for _, s := range segments {
		errs = append(errs, rules.Messages(at, s, validation.IsDNS1123Label(s))...)
	}
	subs, ok := c[segments[0]]
	if !ok || len(segments) == 2 && !subs.Has(segments[1]) {
		errs = append(errs, field.Invalid(at, name, form))
	}
	return errs
}

func validateDeviceClaim(c *resourcev1.DeviceClaim, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := requestsOf(c)
	names := sets.New[string]()
	for i := range c.Requests {
		at := at.Child("requests").Index(i)
		errs = append(errs, validateDeviceRequest(&c.Requests[i], at)...)
		if names.Has(c.Requests[i].Name) {
			errs = append(errs, field.Duplicate(at, c.Requests[i].Name))
		}
		names.Insert(c.Requests[i].Name)
	}
	for i, k := range c.Constraints {
		at := at.Child("constraints").Index(i)
		for j, name := range k.Requests {
			errs = append(errs, known.reference(name, at.Child("requests").Index(j))...)
		}
		switch {
		case k.MatchAttribute != nil:
			errs = append(errs, validateQualifiedQuality(string(*k.MatchAttribute), at.Child("matchAttribute"))...)
		case k.DistinctAttribute != nil:
			errs = append(errs,
				validateQualifiedQuality(string(*k.DistinctAttribute), at.Child("distinctAttribute"))...)
		default:
			errs = append(errs,
				field.Required(at,
					`exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`))
		}
	}
	for i, k := range c.Config {
		at := at.Child("config").Index(i)
		for j, name := range k.Requests {
			errs = append(errs, known.reference(name, at.Child("requests").Index(j))...)
		}
		errs = append(errs, validateDeviceConfiguration(&k.DeviceConfiguration, false, at)...)
	}
	return errs
}

func validateDeviceRequest(r *resourcev1.DeviceRequest, at *field.Path) field.ErrorList {
	errs := rules.Messages(at.Child("name"), r.Name, validation.IsDNS1123Label(r.Name))
	switch {
	case r.Exactly == nil && len(r.FirstAvailable) == 0:
		errs = append(errs, field.Required(at, "exactly one of `exactly` or `firstAvailable` is required"))
	case r.Exactly != nil && len(r.FirstAvailable) > 0:
		errs = append(errs,
			field.Invalid(at, nil,
				"exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"))
	case r.Exactly != nil:
		errs = append(errs, validateDeviceAmount(r.Exactly.DeviceClassName, r.Exactly.AllocationMode, r.Exactly.Count,
			at.Child("exactly"))...)
		errs = append(errs, validateDeviceSelectors(r.Exactly.Selectors, at.Child("exactly", "selectors"), true)...)
		errs = append(errs, validateDeviceTolerations(r.Exactly.Tolerations, at.Child("exactly", "tolerations"))...)
	default:
		for i, sub := range r.FirstAvailable {
			at := at.Child("firstAvailable").Index(i)
			errs = append(errs, rules.Messages(at.Child("name"), sub.Name, validation.IsDNS1123Label(sub.Name))...)
			errs = append(errs, validateDeviceAmount(sub.DeviceClassName, sub.AllocationMode, sub.Count, at)...)
			errs = append(errs, validateDeviceSelectors(sub.Selectors, at.Child("selectors"), true)...)
			errs = append(errs, validateDeviceTolerations(sub.Tolerations, at.Child("tolerations"))...)
		}
	}
	return errs
}

func validateDeviceAmount(class string, mode resourcev1.DeviceAllocationMode, count int64,
	at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if class == "" {
		errs = append(errs, field.Required(at.Child("deviceClassName"), ""))
	} else {
		errs = append(errs, rules.Messages(at.Child("deviceClassName"), class, validation.IsDNS1123Subdomain(class))...)
	}
	switch {
	case mode == resourcev1.DeviceAllocationModeAll && count != 0:
		errs = append(errs, field.Invalid(at.Child("count"), count,
			fmt.Sprintf("must not be specified when allocationMode is '%s'", mode)))
	case mode == resourcev1.DeviceAllocationModeExactCount && count <= 0:
		errs = append(errs, field.Invalid(at.Child("count"), count, "must be greater than zero"))
	case mode != resourcev1.DeviceAllocationModeAll && mode != resourcev1.DeviceAllocationModeExactCount:
		errs = append(errs, rules.Supported(string(mode), at.Child("allocationMode"),
			string(resourcev1.DeviceAllocationModeAll), string(resourcev1.DeviceAllocationModeExactCount))...)
	}
	return errs
}

// validateDeviceConfiguration validates the parameters for a driver; kept: they are already stored.
func validateDeviceConfiguration(c *resourcev1.DeviceConfiguration, kept bool, at *field.Path) field.ErrorList {
	if c.Opaque == nil {
		return field.ErrorList{field.Required(at.Child("opaque"), "")}
	}
	return append(rules.DriverName(c.Opaque.Driver, at.Child("opaque", "driver")),
		validateOpaque(c.Opaque.Parameters, kept, resourcev1.OpaqueParametersMaxLength,
			at.Child("opaque", "parameters"))...)
}

// validateOpaque validates parameters that only a driver understands: one JSON object of at most
// longest bytes, unless it was stored before there was a limit.
func validateOpaque(raw runtime.RawExtension, kept bool, longest int, at *field.Path) field.ErrorList {
	if len(raw.Raw) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	if !kept && len(raw.Raw) > longest {
		return field.ErrorList{field.TooLong(at, "", longest)}
	}
	var v any
	if err := json.Unmarshal(raw.Raw, &v); err != nil {
		return field.ErrorList{field.Invalid(at, "<value omitted>", fmt.Sprintf("error parsing data as JSON: %v", err))}
	}
	if _, ok := v.(map[string]any); v == nil {
		return field.ErrorList{field.Required(at, "")}
	} else if !ok {
		return field.ErrorList{field.Invalid(at, "<value omitted>", "must be a valid JSON object")}
	}
	return nil
}

func validateDeviceClass(c *resourcev1.DeviceClass) field.ErrorList {
	return checkDeviceClass(c, &resourcev1.DeviceClass{})
}

// checkDeviceClass validates a class; selectors and parameters that old has, too, are not validated
// again.
func checkDeviceClass(c, old *resourcev1.DeviceClass) field.ErrorList {
	at := field.NewPath("spec")
	errs := validateDeviceSelectors(c.Spec.Selectors, at.Child("selectors"),
		!apiequality.Semantic.DeepEqual(c.Spec.Selectors, old.Spec.Selectors))
	kept := apiequality.Semantic.DeepEqual(c.Spec.Config, old.Spec.Config)
	for i := range c.Spec.Config {
		errs = append(errs, validateDeviceConfiguration(&c.Spec.Config[i].DeviceConfiguration, kept,
			at.Child("config").Index(i))...)
	}
	if n := c.Spec.ExtendedResourceName; n != nil && !rules.Extendable(corev1.ResourceName(*n)) {
		errs = append(errs, field.Invalid(at.Child("extendedResourceName"), *n,
			"must be a valid extended resource name"))
	}
	return errs
}
