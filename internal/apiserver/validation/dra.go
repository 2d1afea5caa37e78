package validation

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Most rules of resource.k8s.io are declared in the types' comments (package
// declared). These are the ones that comments cannot say: what one field means
// for another.

func resourceClaim(c *resourcev1.ResourceClaim) field.ErrorList {
	return deviceClaim(&c.Spec.Devices, field.NewPath("spec", "devices"))
}

func resourceClaimUpdate(c, old *resourcev1.ResourceClaim) field.ErrorList {
	return apivalidation.ValidateImmutableField(c.Spec, old.Spec, field.NewPath("spec"))
}

func resourceClaimTemplate(t *resourcev1.ResourceClaimTemplate) field.ErrorList {
	errs := templateMeta(&t.Spec.ObjectMeta, field.NewPath("spec", "metadata"))
	return append(errs, deviceClaim(&t.Spec.Spec.Devices, field.NewPath("spec", "spec", "devices"))...)
}

func resourceClaimTemplateUpdate(t, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
	return append(resourceClaimTemplate(t), apivalidation.ValidateImmutableField(t.Spec, old.Spec, field.NewPath("spec"))...)
}

// claimRequests are the names of a claim's requests, each with those of its alternatives.
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

// reference checks a name of the form "request" or "request/alternative".
func (c claimRequests) reference(name string, at *field.Path) field.ErrorList {
	const form = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
	segments := strings.Split(name, "/")
	if len(segments) > 2 {
		return field.ErrorList{field.Invalid(at, name, form)}
	}
	var errs field.ErrorList
	for _, s := range segments {
		errs = append(errs, messages(at, s, validation.IsDNS1123Label(s))...)
	}
	subs, ok := c[segments[0]]
	if !ok || len(segments) == 2 && !subs.Has(segments[1]) {
		errs = append(errs, field.Invalid(at, name, form))
	}
	return errs
}

func deviceClaim(c *resourcev1.DeviceClaim, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := requestsOf(c)
	for i := range c.Requests {
		errs = append(errs, deviceRequest(&c.Requests[i], at.Child("requests").Index(i))...)
	}
	for i, k := range c.Constraints {
		at := at.Child("constraints").Index(i)
		for j, name := range k.Requests {
			errs = append(errs, known.reference(name, at.Child("requests").Index(j))...)
		}
		if k.MatchAttribute == nil && k.DistinctAttribute == nil {
			errs = append(errs, field.Required(at, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`))
		}
	}
	for i, k := range c.Config {
		at := at.Child("config").Index(i)
		for j, name := range k.Requests {
			errs = append(errs, known.reference(name, at.Child("requests").Index(j))...)
		}
		errs = append(errs, deviceConfiguration(&k.DeviceConfiguration, at)...)
	}
	return errs
}

func deviceRequest(r *resourcev1.DeviceRequest, at *field.Path) field.ErrorList {
	errs := messages(at.Child("name"), r.Name, validation.IsDNS1123Label(r.Name))
	switch {
	case r.Exactly == nil && len(r.FirstAvailable) == 0:
		errs = append(errs, field.Required(at, "exactly one of `exactly` or `firstAvailable` is required"))
	case r.Exactly != nil && len(r.FirstAvailable) > 0:
		errs = append(errs, field.Invalid(at, field.OmitValueType{}, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"))
	case r.Exactly != nil:
		errs = append(errs, deviceAmount(r.Exactly.DeviceClassName, r.Exactly.AllocationMode, r.Exactly.Count, at.Child("exactly"))...)
		errs = append(errs, deviceSelectors(r.Exactly.Selectors, at.Child("exactly", "selectors"), true)...)
		errs = append(errs, toleratedValues(r.Exactly.Tolerations, at.Child("exactly", "tolerations"))...)
	default:
		for i, sub := range r.FirstAvailable {
			at := at.Child("firstAvailable").Index(i)
			errs = append(errs, messages(at.Child("name"), sub.Name, validation.IsDNS1123Label(sub.Name))...)
			errs = append(errs, deviceAmount(sub.DeviceClassName, sub.AllocationMode, sub.Count, at)...)
			errs = append(errs, deviceSelectors(sub.Selectors, at.Child("selectors"), true)...)
			errs = append(errs, toleratedValues(sub.Tolerations, at.Child("tolerations"))...)
		}
	}
	return errs
}

func deviceAmount(class string, mode resourcev1.DeviceAllocationMode, count int64, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if class == "" {
		errs = append(errs, field.Required(at.Child("deviceClassName"), ""))
	} else {
		errs = append(errs, messages(at.Child("deviceClassName"), class, validation.IsDNS1123Subdomain(class))...)
	}
	switch {
	case mode == resourcev1.DeviceAllocationModeAll && count != 0:
		errs = append(errs, field.Invalid(at.Child("count"), count, fmt.Sprintf("must not be specified when allocationMode is '%s'", mode)))
	case mode == resourcev1.DeviceAllocationModeExactCount && count <= 0:
		errs = append(errs, field.Invalid(at.Child("count"), count, "must be greater than zero"))
	}
	return errs
}

func deviceConfiguration(c *resourcev1.DeviceConfiguration, at *field.Path) field.ErrorList {
	if c.Opaque == nil {
		return field.ErrorList{field.Required(at.Child("opaque"), "")}
	}
	return append(driverName(c.Opaque.Driver, at.Child("opaque", "driver")), opaque(c.Opaque.Parameters, at.Child("opaque", "parameters"))...)
}

// opaque checks parameters that only a driver understands: they are one object of bounded size.
func opaque(raw runtime.RawExtension, at *field.Path) field.ErrorList {
	const longest = resourcev1.OpaqueParametersMaxLength
	if len(raw.Raw) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	if len(raw.Raw) > longest {
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

func resourceClaimStatusUpdate(c, old *resourcev1.ResourceClaim) field.ErrorList {
	at := field.NewPath("status")
	s, was := &c.Status, &old.Status
	var errs field.ErrorList
	for i, r := range s.ReservedFor {
		at := at.Child("reservedFor").Index(i)
		errs = append(errs, required(at.Child("resource"), r.Resource)...)
		errs = append(errs, required(at.Child("name"), r.Name)...)
		errs = append(errs, required(at.Child("uid"), string(r.UID))...)
	}
	if len(s.ReservedFor) > 0 && s.Allocation == nil {
		errs = append(errs, field.Forbidden(at.Child("reservedFor"), "may not be specified when `allocated` is not set"))
	} else if c.DeletionTimestamp != nil && sets.New(s.ReservedFor...).Difference(sets.New(was.ReservedFor...)).Len() > 0 {
		errs = append(errs, field.Forbidden(at.Child("reservedFor"), "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"))
	}
	for i, d := range s.Devices {
		at := at.Child("devices").Index(i)
		errs = append(errs, driverName(d.Driver, at.Child("driver"))...)
		if d.Pool == "" {
			errs = append(errs, field.Required(at.Child("pool"), ""))
		}
		errs = append(errs, messages(at.Child("device"), d.Device, validation.IsDNS1123Label(d.Device))...)
		allocated := s.Allocation != nil && slices.ContainsFunc(s.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
			return r.Driver == d.Driver && r.Pool == d.Pool && r.Device == d.Device
		})
		if !allocated {
			errs = append(errs, field.Invalid(at, d.Driver+"/"+d.Pool+"/"+d.Device, "must be an allocated device in the claim"))
		}
	}
	switch {
	case s.Allocation == nil:
	case was.Allocation != nil:
		errs = append(errs, apivalidation.ValidateImmutableField(s.Allocation, was.Allocation, at.Child("allocation"))...)
	default:
		errs = append(errs, allocation(s.Allocation, requestsOf(&c.Spec.Devices), at.Child("allocation"))...)
	}
	return errs
}

func allocation(a *resourcev1.AllocationResult, known claimRequests, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, r := range a.Devices.Results {
		at := at.Child("devices", "results").Index(i)
		errs = append(errs, known.reference(r.Request, at.Child("request"))...)
		errs = append(errs, driverName(r.Driver, at.Child("driver"))...)
		errs = append(errs, messages(at.Child("device"), r.Device, validation.IsDNS1123Label(r.Device))...)
	}
	for i, c := range a.Devices.Config {
		at := at.Child("devices", "config").Index(i)
		for j, name := range c.Requests {
			errs = append(errs, known.reference(name, at.Child("requests").Index(j))...)
		}
		errs = append(errs, deviceConfiguration(&c.DeviceConfiguration, at)...)
	}
	if a.NodeSelector != nil {
		errs = append(errs, nodeSelector(a.NodeSelector, false, at.Child("nodeSelector"))...)
	}
	return errs
}

func deviceClass(c *resourcev1.DeviceClass) field.ErrorList {
	return append(deviceSelectors(c.Spec.Selectors, field.NewPath("spec", "selectors"), true), deviceClassConfig(c)...)
}

// Selectors that stay as they are were compiled when they were stored.
func deviceClassUpdate(c, old *resourcev1.DeviceClass) field.ErrorList {
	changed := !apiequality.Semantic.DeepEqual(c.Spec.Selectors, old.Spec.Selectors)
	return append(deviceSelectors(c.Spec.Selectors, field.NewPath("spec", "selectors"), changed), deviceClassConfig(c)...)
}

func deviceClassConfig(c *resourcev1.DeviceClass) field.ErrorList {
	at := field.NewPath("spec")
	var errs field.ErrorList
	for i := range c.Spec.Config {
		errs = append(errs, deviceConfiguration(&c.Spec.Config[i].DeviceConfiguration, at.Child("config").Index(i))...)
	}
	return errs
}

// A slice belongs to one driver's pool, and says in one way which nodes its devices are for.
func resourceSlice(s *resourcev1.ResourceSlice) field.ErrorList { return sliceSpec(s, false) }

// sliceSpec checks a slice; kept says that its devices are stored already.
func sliceSpec(s *resourcev1.ResourceSlice, kept bool) field.ErrorList {
	at := field.NewPath("spec")
	errs := driverName(s.Spec.Driver, at.Child("driver"))
	ways := 0
	for _, set := range []bool{s.Spec.NodeName != nil, s.Spec.NodeSelector != nil, s.Spec.AllNodes != nil, s.Spec.PerDeviceNodeSelection != nil} {
		if set {
			ways++
		}
	}
	const fields = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	switch {
	case ways == 0:
		errs = append(errs, field.Required(at, fields))
	case ways > 1:
		errs = append(errs, field.Invalid(at, field.OmitValueType{}, fields+", but multiple fields are set"))
	}
	if n := s.Spec.NodeName; n != nil {
		errs = append(errs, messages(at.Child("nodeName"), *n, apivalidation.NameIsDNSSubdomain(*n, false))...)
	}
	if sel := s.Spec.NodeSelector; sel != nil {
		errs = append(errs, nodeSelector(sel, false, at.Child("nodeSelector"))...)
		if len(sel.NodeSelectorTerms) > 1 {
			errs = append(errs, field.Invalid(at.Child("nodeSelector", "nodeSelectorTerms"), sel.NodeSelectorTerms, "must have exactly one node selector term"))
		}
	}
	if a := s.Spec.AllNodes; a != nil && !*a {
		errs = append(errs, field.Invalid(at.Child("allNodes"), *a, "must be either unset or set to true"))
	}
	names := sets.New[string]()
	for i, d := range s.Spec.Devices {
		at := at.Child("devices").Index(i).Child("name")
		errs = append(errs, messages(at, d.Name, validation.IsDNS1123Label(d.Name))...)
		if names.Has(d.Name) {
			errs = append(errs, field.Duplicate(at, d.Name))
		}
		names.Insert(d.Name)
		errs = append(errs, slicedDevice(&s.Spec.Devices[i], kept, field.NewPath("spec", "devices").Index(i))...)
	}
	errs = append(errs, devicePool(&s.Spec.Pool, at.Child("pool"))...)
	if s.Spec.SharedCounters != nil && s.Spec.Devices != nil {
		errs = append(errs, field.Invalid(at, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	return errs
}

func resourceSliceUpdate(s, old *resourcev1.ResourceSlice) field.ErrorList {
	at := field.NewPath("spec")
	errs := sliceSpec(s, apiequality.Semantic.DeepEqual(s.Spec.Devices, old.Spec.Devices))
	errs = append(errs, apivalidation.ValidateImmutableField(s.Spec.Driver, old.Spec.Driver, at.Child("driver"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(s.Spec.Pool.Name, old.Spec.Pool.Name, at.Child("pool", "name"))...)
	return append(errs, apivalidation.ValidateImmutableField(s.Spec.NodeName, old.Spec.NodeName, at.Child("nodeName"))...)
}
