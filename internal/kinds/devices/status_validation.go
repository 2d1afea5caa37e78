package devices

import (
	resourcev1 "k8s.io/api/resource/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/rules"
)

func validateResourceClaimStatusUpdate(c, old *resourcev1.ResourceClaim) field.ErrorList {
	at := field.NewPath("status")
	s, was := &c.Status, &old.Status
	var errs field.ErrorList
	for i, r := range s.ReservedFor {
		at := at.Child("reservedFor").Index(i)
		errs = append(errs, rules.Required(at.Child("resource"), r.Resource)...)
		errs = append(errs, rules.Required(at.Child("name"), r.Name)...)
		errs = append(errs, rules.Required(at.Child("uid"), string(r.UID))...)
	}
	if len(s.ReservedFor) > 0 && s.Allocation == nil {
		errs = append(errs, field.Forbidden(at.Child("reservedFor"),
			"may not be specified when `allocated` is not set"))
	} else if c.DeletionTimestamp != nil &&
		sets.New(s.ReservedFor...).Difference(sets.New(was.ReservedFor...)).Len() > 0 {
		errs = append(errs, field.Forbidden(at.Child("reservedFor"),
			"new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"))
	}
	errs = append(errs, validateDeviceStates(s, at.Child("devices"))...)
	switch {
	case s.Allocation == nil:
	case was.Allocation != nil:
		errs = append(errs, apivalidation.ValidateImmutableField(s.Allocation, was.Allocation,
			at.Child("allocation"))...)
	default:
		errs = append(errs, validateAllocation(s.Allocation, requestsOf(&c.Spec.Devices), at.Child("allocation"))...)
	}
	return errs
}

func validateAllocation(a *resourcev1.AllocationResult, known claimRequests, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, r := range a.Devices.Results {
		at := at.Child("devices", "results").Index(i)
		errs = append(errs, known.reference(r.Request, at.Child("request"))...)
		errs = append(errs, rules.DriverName(r.Driver, at.Child("driver"))...)
		errs = append(errs, validatePoolName(r.Pool, at.Child("pool"))...)
		errs = append(errs, rules.Messages(at.Child("device"), r.Device, validation.IsDNS1123Label(r.Device))...)
		errs = append(errs, validateBindingConditions(r.BindingConditions, r.BindingFailureConditions, at)...)
		errs = append(errs, validateDeviceTolerations(r.Tolerations, at.Child("tolerations"))...)
	}
	for i, c := range a.Devices.Config {
		at := at.Child("devices", "config").Index(i)
		for j, name := range c.Requests {
			errs = append(errs, known.reference(name, at.Child("requests").Index(j))...)
		}
		errs = append(errs, validateDeviceConfiguration(&c.DeviceConfiguration, false, at)...)
	}
	if a.NodeSelector != nil {
		errs = append(errs, rules.NodeSelector(a.NodeSelector, false, at.Child("nodeSelector"))...)
	}
	return errs
}

// sharedDevice identifies one share of an allocated device; errors show it in this form.
type sharedDevice struct{ Driver, Pool, Device, ShareID string }

// validateDeviceStates validates the status that drivers report for the devices of a claim.
func validateDeviceStates(s *resourcev1.ResourceClaimStatus, list *field.Path) field.ErrorList {
	allocated := sets.New[sharedDevice]()
	if s.Allocation != nil {
		for _, r := range s.Allocation.Devices.Results {
			allocated.Insert(sharedDevice{r.Driver, r.Pool, r.Device, string(ptr.Deref(r.ShareID, ""))})
		}
	}
	var errs field.ErrorList
	for i, d := range s.Devices {
		at := list.Index(i)
		errs = append(errs, rules.DriverName(d.Driver, at.Child("driver"))...)
		errs = append(errs, validatePoolName(d.Pool, at.Child("pool"))...)
		errs = append(errs, rules.Messages(at.Child("device"), d.Device, validation.IsDNS1123Label(d.Device))...)
		if id := (sharedDevice{d.Driver, d.Pool, d.Device, ptr.Deref(d.ShareID, "")}); !allocated.Has(id) {
			errs = append(errs, field.Invalid(at, id, "must be an allocated device in the claim"))
		}
		errs = append(errs, validateBoundedConditions(d.Conditions, resourcev1.AllocatedDeviceStatusMaxConditions,
			at.Child("conditions"))...)
		if d.Data != nil && len(d.Data.Raw) > 0 {
			errs = append(errs,
				validateOpaque(*d.Data, false, resourcev1.AllocatedDeviceStatusDataMaxLength, at.Child("data"))...)
		}
		if d.NetworkData != nil {
			for j, ip := range d.NetworkData.IPs {
				errs = append(errs, validation.IsValidInterfaceAddress(at.Child("networkData", "ips").Index(j), ip)...)
			}
		}
	}
	return errs
}

// validateBoundedConditions validates conditions, up to a maximum number.
func validateBoundedConditions(list []metav1.Condition, most int, at *field.Path) field.ErrorList {
	errs := metav1validation.ValidateConditions(list, at)
	if len(list) > most {
		errs = append(errs, field.TooMany(at, len(list), most))
	}
	return errs
}
