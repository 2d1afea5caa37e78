package devices

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func validateResourceSlice(s *resourcev1.ResourceSlice) field.ErrorList { return checkSlice(s, nil) }

func validateResourceSliceUpdate(s, old *resourcev1.ResourceSlice) field.ErrorList {
	at := field.NewPath("spec")
	errs := checkSlice(s, old)
	errs = append(errs, apivalidation.ValidateImmutableField(s.Spec.Driver, old.Spec.Driver, at.Child("driver"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(s.Spec.Pool.Name, old.Spec.Pool.Name,
		at.Child("pool", "name"))...)
	return append(errs, apivalidation.ValidateImmutableField(s.Spec.NodeName, old.Spec.NodeName,
		at.Child("nodeName"))...)
}

// checkSlice validates a slice: it belongs to one driver's pool, and selects the nodes of its
// devices in one way. Parts of devices that old has, too, are not validated again; old is nil for a
// new slice.
func checkSlice(s, old *resourcev1.ResourceSlice) field.ErrorList {
	at := field.NewPath("spec")
	errs := rules.DriverName(s.Spec.Driver, at.Child("driver"))
	errs = append(errs, validateDevicePool(&s.Spec.Pool, at.Child("pool"))...)
	errs = append(errs, validateSliceNodes(&s.Spec, at)...)
	if s.Spec.SharedCounters != nil && s.Spec.Devices != nil {
		errs = append(errs, field.Invalid(at, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	errs = append(errs, validateSliceDevices(s, old, at.Child("devices"))...)
	return append(errs, validateCounterSets(s.Spec.SharedCounters, at.Child("sharedCounters"))...)
}

// nodeChoice is the set of fields that select nodes; exactly one of them must be set.
type nodeChoice struct {
	taken []string
	errs  field.ErrorList
}

func (n *nodeChoice) byName(name *string, empty string, at *field.Path) {
	switch {
	case name == nil:
	case *name == "":
		n.errs = append(n.errs, field.Invalid(at, *name, empty))
	default:
		n.taken = append(n.taken, "`nodeName`")
		n.errs = append(n.errs, rules.Messages(at, *name, apivalidation.NameIsDNSSubdomain(*name, false))...)
	}
}

func (n *nodeChoice) bySelector(s *corev1.NodeSelector, at *field.Path) {
	if s != nil {
		n.taken = append(n.taken, "`nodeSelector`")
		n.errs = append(n.errs, rules.NodeSelector(s, false, at)...)
	}
}

func (n *nodeChoice) byFlag(name string, flag *bool, at *field.Path) {
	switch {
	case flag == nil:
	case *flag:
		n.taken = append(n.taken, "`"+name+"`")
	default:
		n.errs = append(n.errs, field.Invalid(at.Child(name), *flag, "must be either unset or set to true"))
	}
}

// one returns the errors, with one more unless exactly one field is set.
func (n *nodeChoice) one(none, several string, at *field.Path) field.ErrorList {
	switch len(n.taken) {
	case 0:
		return append(n.errs, field.Required(at, none))
	case 1:
		return n.errs
	}
	return append(n.errs, field.Invalid(at, "{"+strings.Join(n.taken, ", ")+"}", several))
}

func validateSliceNodes(s *resourcev1.ResourceSliceSpec, at *field.Path) field.ErrorList {
	var n nodeChoice
	n.byName(s.NodeName, "must be either unset or set to a non-empty string", at.Child("nodeName"))
	n.bySelector(s.NodeSelector, at.Child("nodeSelector"))
	if s.NodeSelector != nil && len(s.NodeSelector.NodeSelectorTerms) != 1 {
		n.errs = append(n.errs,
			field.Invalid(at.Child("nodeSelector", "nodeSelectorTerms"), s.NodeSelector.NodeSelectorTerms,
				"must have exactly one node selector term"))
	}
	n.byFlag("allNodes", s.AllNodes, at)
	n.byFlag("perDeviceNodeSelection", s.PerDeviceNodeSelection, at)
	const need = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	return n.one(need, need+", but multiple fields are set", at)
}

func validateDeviceNodes(d *resourcev1.Device, each bool, at *field.Path) field.ErrorList {
	if !each {
		if d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil {
			return field.ErrorList{field.Invalid(at, nil,
				"`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec")}
		}
		return nil
	}
	var n nodeChoice
	n.byName(d.NodeName, "must not be empty", at.Child("nodeName"))
	n.bySelector(d.NodeSelector, at.Child("nodeSelector"))
	n.byFlag("allNodes", d.AllNodes, at)
	const need = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
	return n.one(need, need, at)
}

// validateDevicePool validates the pool of a slice.
func validateDevicePool(p *resourcev1.ResourcePool, at *field.Path) field.ErrorList {
	errs := validatePoolName(p.Name, at.Child("name"))
	if p.ResourceSliceCount <= 0 {
		errs = append(errs, field.Invalid(at.Child("resourceSliceCount"), p.ResourceSliceCount,
			"must be greater than zero"))
	}
	if p.Generation < 0 {
		errs = append(errs, field.Invalid(at.Child("generation"), p.Generation,
			"must be greater than or equal to zero"))
	}
	return errs
}

// validatePoolName validates the name of a pool: DNS names separated by slashes.
func validatePoolName(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs field.ErrorList
	if len(name) > resourcev1.PoolNameMaxLength {
		errs = append(errs, field.TooLong(at, "", resourcev1.PoolNameMaxLength))
	}
	for part := range strings.SplitSeq(name, "/") {
		errs = append(errs, rules.Messages(at, part, validation.IsDNS1123Subdomain(part))...)
	}
	return errs
}

// validateDeviceQuality validates the name of an attribute or capacity: an identifier, optionally
// after a driver's name and a slash. A name with more slashes gets no further error.
func validateDeviceQuality(name string, at *field.Path) field.ErrorList {
	domain, id, qualified := strings.Cut(name, "/")
	var errs field.ErrorList
	switch {
	case !qualified:
		return validateIdentifier(name, at)
	case strings.Contains(id, "/"):
		return nil
	case domain == "":
		errs = append(errs, field.Invalid(at, "", "the domain must not be empty"))
	default:
		errs = append(errs, rules.DriverName(domain, at)...)
	}
	if id == "" {
		return append(errs, field.Invalid(at, "", "the name must not be empty"))
	}
	return append(errs, validateIdentifier(id, at)...)
}

// validateQualifiedQuality validates such a name with a driver's name before it.
func validateQualifiedQuality(name string, at *field.Path) field.ErrorList {
	errs := validateDeviceQuality(name, at)
	if !strings.Contains(name, "/") {
		errs = append(errs,
			field.Invalid(at, name, "a fully qualified name must be a domain and a name separated by a slash"))
	}
	return errs
}

func validateIdentifier(id string, at *field.Path) field.ErrorList {
	errs := rules.Messages(at, id, validation.IsCIdentifier(id))
	if len(id) > resourcev1.DeviceMaxIDLength {
		errs = append(errs, field.TooLong(at, "", resourcev1.DeviceMaxIDLength))
	}
	return errs
}

func validateSliceDevices(s, old *resourcev1.ResourceSlice, at *field.Path) field.ErrorList {
	// Slices whose devices need more work of the scheduler have a lower limit.
	most := resourcev1.ResourceSliceMaxDevices
	if slices.ContainsFunc(s.Spec.Devices, demanding) {
		most = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
	}
	if n := len(s.Spec.Devices); n > most {
		return field.ErrorList{field.TooMany(at, n, most)}
	}
	before := map[string]*resourcev1.Device{}
	if old != nil {
		for i := range old.Spec.Devices {
			before[old.Spec.Devices[i].Name] = &old.Spec.Devices[i]
		}
	}
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range s.Spec.Devices {
		d, at := &s.Spec.Devices[i], at.Index(i)
		errs = append(errs, validateSlicedDevice(d, before[d.Name], at)...)
		errs = append(errs,
			validateDeviceNodes(d, s.Spec.PerDeviceNodeSelection != nil && *s.Spec.PerDeviceNodeSelection, at)...)
		if names.Has(d.Name) {
			errs = append(errs, field.Duplicate(at, d.Name))
		}
		names.Insert(d.Name)
	}
	return errs
}

func demanding(d resourcev1.Device) bool {
	return len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 ||
		slices.ContainsFunc(slices.Collect(maps.Values(d.Attributes)), hasList)
}

func hasList(a resourcev1.DeviceAttribute) bool {
	return a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil
}

// validateSlicedDevice validates one device; was is the stored one of this name, nil if there is
// none.
func validateSlicedDevice(d, was *resourcev1.Device, at *field.Path) field.ErrorList {
	errs := rules.Messages(at.Child("name"), d.Name, validation.IsDNS1123Label(d.Name))
	const most, mostValues = resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice,
		resourcev1.ResourceSliceMaxAttributeValuesPerDevice
	if n := len(d.Attributes) + len(d.Capacity); n > most {
		errs = append(errs,
			field.Invalid(at, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", most)))
	}
	values := 0
	for _, a := range d.Attributes {
		values += max(1, len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues))
	}
	if values > mostValues {
		errs = append(errs,
			field.Invalid(at, values,
				fmt.Sprintf("the total number of attribute values must not exceed %d", mostValues)))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		errs = append(errs, validateDeviceQuality(string(name), at.Child("attributes"))...)
		a := d.Attributes[name]
		errs = append(errs, validateDeviceAttribute(&a, at.Child("attributes").Key(shownQuality(string(name))))...)
	}
	if was == nil || !apiequality.Semantic.DeepEqual(was.Capacity, d.Capacity) {
		errs = append(errs, validateDeviceCapacity(d, at.Child("capacity"))...)
	}
	if was == nil || !apiequality.Semantic.DeepEqual(was.Taints, d.Taints) {
		errs = append(errs, validateDeviceTaints(d.Taints, at.Child("taints"))...)
	}
	errs = append(errs, validateConsumedCounters(d.ConsumesCounters, at.Child("consumesCounters"))...)
	return append(errs, validateBindingConditions(d.BindingConditions, d.BindingFailureConditions, at)...)
}

// shownQuality shortens a name that is too long.
func shownQuality(name string) string {
	const longest, dots = resourcev1.DeviceMaxDomainLength + 1 + resourcev1.DeviceMaxIDLength, "..."
	if len(name) <= longest {
		return name
	}
	left := longest - len(dots)
	return name[:(left+1)/2] + dots + name[len(name)-left/2:]
}

var semanticVersion = regexp.MustCompile(
	`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

// validateDeviceAttribute validates an attribute: it has exactly one value. (Lists of values belong
// to a feature that is off in v1.37; they are dropped before.)
func validateDeviceAttribute(a *resourcev1.DeviceAttribute, at *field.Path) field.ErrorList {
	const longest = resourcev1.DeviceAttributeMaxValueLength
	var errs field.ErrorList
	if v := a.StringValue; v != nil && len(*v) > longest {
		errs = append(errs, field.TooLong(at.Child("string"), "", longest))
	}
	if v := a.VersionValue; v != nil {
		if !semanticVersion.MatchString(*v) {
			errs = append(errs,
				field.Invalid(at.Child("version"), *v, "must be a string compatible with semver.org spec 2.0.0"))
		}
		if len(*v) > longest {
			errs = append(errs, field.TooLong(at.Child("version"), "", longest))
		}
	}
	values := 0
	for _, set := range []bool{a.BoolValue != nil, a.IntValue != nil, a.StringValue != nil, a.VersionValue != nil,
		a.BoolValues != nil, a.IntValues != nil, a.StringValues != nil, a.VersionValues != nil} {
		if set {
			values++
		}
	}
	switch {
	case values == 0:
		errs = append(errs, field.Invalid(at, "", "exactly one value must be specified"))
	case values > 1:
		errs = append(errs, field.Invalid(at, *a, "exactly one value must be specified"))
	}
	return errs
}

func validateDeviceCapacity(d *resourcev1.Device, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	shared := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		errs = append(errs, validateDeviceQuality(string(name), at)...)
		switch c, at := d.Capacity[name], at.Key(shownQuality(string(name))).Child("requestPolicy"); {
		case c.RequestPolicy == nil:
		case shared:
			errs = append(errs, validateRequestPolicy(c.Value, c.RequestPolicy, at)...)
		default:
			errs = append(errs, field.Forbidden(at, "allowMultipleAllocations must be true"))
		}
	}
	return errs
}

func validateDeviceTaints(list []resourcev1.DeviceTaint, at *field.Path) field.ErrorList {
	if len(list) > resourcev1.DeviceTaintsMaxLength {
		return field.ErrorList{field.TooMany(at, len(list), resourcev1.DeviceTaintsMaxLength)}
	}
	var errs field.ErrorList
	for i := range list {
		errs = append(errs, validateDeviceTaint(&list[i], nil, at.Index(i))...)
	}
	return errs
}

// validateBindingConditions validates the conditions that a device waits for, and those of a
// failure: both or none.
func validateBindingConditions(conditions, failures []string, at *field.Path) field.ErrorList {
	both := []struct {
		name       string
		conditions []string
		other      string
	}{{"bindingConditions", conditions, "bindingFailureConditions"},
		{"bindingFailureConditions", failures, "bindingConditions"}}
	var errs field.ErrorList
	for _, list := range both {
		seen := sets.New[string]()
		for i, c := range list.conditions {
			at := at.Child(list.name).Index(i)
			errs = append(errs, rules.Messages(at, c, validation.IsQualifiedName(c))...)
			if seen.Has(c) {
				errs = append(errs, field.Duplicate(at, c))
			}
			seen.Insert(c)
		}
		if len(list.conditions) == 0 && len(conditions)+len(failures) > 0 {
			errs = append(errs,
				field.Invalid(at.Child(list.name), list.conditions,
					fmt.Sprintf("%s are required to use %s", list.name, list.other)))
		}
	}
	awaited := sets.New(conditions...) // any number: their limit is checked elsewhere
	for i, c := range failures {
		if awaited.Has(c) {
			errs = append(errs,
				field.Invalid(at.Child("bindingFailureConditions").Index(i), c,
					"bindingFailureConditions must not overlap with bindingConditions"))
		}
	}
	return errs
}

func validateCounterSets(list []resourcev1.CounterSet, at *field.Path) field.ErrorList {
	if len(list) > resourcev1.ResourceSliceMaxCounterSets {
		return field.ErrorList{field.TooMany(at, len(list), resourcev1.ResourceSliceMaxCounterSets)}
	}
	return validateNamedCounters(list, at, "name", resourcev1.ResourceSliceMaxCountersPerCounterSet,
		func(c resourcev1.CounterSet) (string, map[string]resourcev1.Counter) {
			return c.Name, c.Counters
		})
}

func validateConsumedCounters(list []resourcev1.DeviceCounterConsumption, at *field.Path) field.ErrorList {
	if len(list) > resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
		return field.ErrorList{field.TooMany(at, len(list),
			resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice)}
	}
	return validateNamedCounters(list, at, "counterSet", resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption,
		func(c resourcev1.DeviceCounterConsumption) (string, map[string]resourcev1.Counter) {
			return c.CounterSet, c.Counters
		})
}

// validateNamedCounters validates sets of counters with names; parts returns the name, which is in
// the field key, and the counters.
func validateNamedCounters[T any](list []T, at *field.Path, key string, most int,
	parts func(T) (string, map[string]resourcev1.Counter)) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i := range list {
		at := at.Index(i)
		name, counters := parts(list[i])
		if name == "" {
			errs = append(errs, field.Required(at.Child(key), ""))
		} else {
			errs = append(errs, rules.Messages(at.Child(key), name, validation.IsDNS1123Label(name))...)
		}
		switch n := len(counters); {
		case n == 0:
			errs = append(errs, field.Required(at.Child("counters"), ""))
		case n > most:
			errs = append(errs, field.TooMany(at.Child("counters"), n, most))
		default:
			for _, name := range slices.Sorted(maps.Keys(counters)) {
				errs = append(errs, rules.Messages(at.Child("counters"), name, validation.IsDNS1123Label(name))...)
			}
		}
		if seen.Has(name) {
			errs = append(errs, field.Duplicate(at, name))
		}
		seen.Insert(name)
	}
	return errs
}
