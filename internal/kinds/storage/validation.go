package storage

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
	"carob/internal/kinds/volumes"
)

func validateStorageClass(c *storagev1.StorageClass) field.ErrorList {
	errs := validateProvisioner(c.Provisioner, field.NewPath("provisioner"))
	errs = append(errs, validateParameters(c.Parameters, true)...)
	if p := c.ReclaimPolicy; p != nil && *p != "" {
		errs = append(errs, rules.OneOf(string(*p), field.NewPath("reclaimPolicy"),
			string(corev1.PersistentVolumeReclaimDelete), string(corev1.PersistentVolumeReclaimRetain))...)
	}
	if m := field.NewPath("volumeBindingMode"); c.VolumeBindingMode == nil {
		errs = append(errs, field.Required(m, ""))
	} else if v := *c.VolumeBindingMode; v != storagev1.VolumeBindingImmediate &&
		v != storagev1.VolumeBindingWaitForFirstConsumer {
		errs = append(errs,
			field.NotSupported(m, v,
				[]storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate,
					storagev1.VolumeBindingWaitForFirstConsumer}))
	}
	return append(errs, validateTopologies(c.AllowedTopologies, field.NewPath("allowedTopologies"))...)
}

func validateStorageClassUpdate(c, old *storagev1.StorageClass) field.ErrorList {
	errs := validateStorageClass(c)
	errs = append(errs, apivalidation.ValidateImmutableField(c.Parameters, old.Parameters,
		field.NewPath("parameters"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(c.Provisioner, old.Provisioner,
		field.NewPath("provisioner"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(c.ReclaimPolicy, old.ReclaimPolicy,
		field.NewPath("reclaimPolicy"))...)
	return append(errs, apivalidation.ValidateImmutableField(c.VolumeBindingMode, old.VolumeBindingMode,
		field.NewPath("volumeBindingMode"))...)
}

func validateProvisioner(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return rules.Messages(at, strings.ToLower(name), validation.IsQualifiedName(strings.ToLower(name)))
}

func validateParameters(list map[string]string, empty bool) field.ErrorList {
	const most, bytes = 512, 256 << 10
	at := field.NewPath("parameters")
	if len(list) > most {
		return field.ErrorList{field.TooLong(at, "", most)}
	}
	var errs field.ErrorList
	size := 0
	for _, key := range slices.Sorted(maps.Keys(list)) {
		if key == "" {
			errs = append(errs, field.Invalid(at, key, "field can not be empty."))
		}
		size += len(key) + len(list[key])
	}
	if size > bytes {
		errs = append(errs, field.TooLong(at, "", bytes))
	}
	if !empty && len(list) == 0 {
		errs = append(errs, field.Required(at, "must contain at least one key/value pair"))
	}
	return errs
}

func validateTopologies(terms []corev1.TopologySelectorTerm, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, term := range terms {
		values := map[string]sets.Set[string]{}
		for j, r := range term.MatchLabelExpressions {
			at := at.Index(i).Child("matchLabelExpressions").Index(j)
			set := sets.New[string]()
			if len(r.Values) == 0 {
				errs = append(errs, field.Required(at.Child("values"), ""))
			}
			for k, v := range r.Values {
				if set.Has(v) {
					errs = append(errs, field.Duplicate(at.Child("values").Index(k), v))
				}
				set.Insert(v)
			}
			errs = append(errs, metav1validation.ValidateLabelName(r.Key, at.Child("key"))...)
			if _, ok := values[r.Key]; ok {
				errs = append(errs, field.Duplicate(at.Child("key"), r.Key))
			}
			values[r.Key] = set
		}
		text := canonical(values)
		if len(term.MatchLabelExpressions) == 0 || seen.Has(text) {
			errs = append(errs, field.Duplicate(at.Index(i).Child("matchLabelExpressions"), ""))
		}
		seen.Insert(text)
	}
	return errs
}

// canonical returns a text that only equal sets have.
func canonical(values map[string]sets.Set[string]) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&b, "%q:%q;", key, sets.List(values[key]))
	}
	return b.String()
}

func validateVolumeAttachment(a *storagev1.VolumeAttachment) field.ErrorList {
	at := field.NewPath("spec")
	errs := rules.DriverName(a.Spec.Attacher, at.Child("attacher"))
	switch s, at := a.Spec.Source, at.Child("source"); {
	case s.InlineVolumeSpec == nil && s.PersistentVolumeName == nil:
		errs = append(errs, field.Required(at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		errs = append(errs,
			field.Forbidden(at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case s.InlineVolumeSpec != nil:
		errs = append(errs, volumes.ValidateVolumeSpec(s.InlineVolumeSpec, true, false,
			at.Child("inlineVolumeSpec"))...)
	case *s.PersistentVolumeName == "":
		errs = append(errs, field.Required(at.Child("persistentVolumeName"),
			"must specify non empty persistentVolumeName"))
	}
	if s := a.Spec.Source; s.PersistentVolumeName != nil {
		at := at.Child("source")
		errs = append(errs, rules.Messages(at.Child("persistentVolumeName"), *s.PersistentVolumeName,
			apivalidation.NameIsDNSSubdomain(*s.PersistentVolumeName, false))...)
	}
	errs = append(errs, rules.Messages(at.Child("nodeName"), a.Spec.NodeName,
		apivalidation.NameIsDNSSubdomain(a.Spec.NodeName, false))...)
	return append(errs, validateAttachmentStatus(&a.Status)...)
}

func validateAttachmentStatus(s *storagev1.VolumeAttachmentStatus) field.ErrorList {
	const bytes, text = 256 << 10, 1024
	at := field.NewPath("status")
	var errs field.ErrorList
	size := 0
	for k, v := range s.AttachmentMetadata {
		size += len(k) + len(v)
	}
	if size > bytes {
		errs = append(errs, field.TooLong(at.Child("attachmentMetadata"), "", bytes))
	}
	for _, e := range []struct {
		name  string
		value *storagev1.VolumeError
	}{{"attachError", s.AttachError}, {"detachError", s.DetachError}} {
		if e.value == nil {
			continue
		}
		if len(e.value.Message) > text {
			errs = append(errs, field.TooLong(at.Child(e.name, "message"), "", text))
		}
		if c := e.value.ErrorCode; c != nil && *c < 0 {
			errs = append(errs,
				field.Invalid(at.Child(e.name, "errorCode"), *c, validation.InclusiveRangeError(0, math.MaxInt32)))
		}
	}
	return errs
}

func validateVolumeAttachmentUpdate(a, old *storagev1.VolumeAttachment) field.ErrorList {
	return append(validateVolumeAttachment(a),
		apivalidation.ValidateImmutableField(a.Spec, old.Spec, field.NewPath("spec"))...)
}

func validateCSINode(n *storagev1.CSINode) field.ErrorList {
	const longest = 256
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range n.Spec.Drivers {
		d, at := &n.Spec.Drivers[i], field.NewPath("spec", "drivers").Index(i)
		errs = append(errs, rules.DriverName(d.Name, at.Child("name"))...)
		errs = append(errs, rules.Required(at.Child("nodeID"), d.NodeID)...)
		if len(d.NodeID) > longest {
			errs = append(errs,
				field.Invalid(at.Child("nodeID"), d.NodeID, fmt.Sprintf("must be %d characters or less", longest)))
		}
		if d.Allocatable != nil {
			errs = append(errs, rules.NonNegative(d.Allocatable.Count, at.Child("allocatable", "count"))...)
		}
		if names.Has(d.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), d.Name))
		}
		names.Insert(d.Name)
		keys := sets.New[string]()
		for _, key := range d.TopologyKeys {
			if key == "" {
				errs = append(errs, field.Required(at, key))
			}
			if keys.Has(key) {
				errs = append(errs, field.Duplicate(at, key))
			}
			keys.Insert(key)
			errs = append(errs, rules.Messages(at, key, validation.IsQualifiedName(key))...)
		}
	}
	return errs
}

// A driver's entry is immutable, except for the number of volumes.
func validateCSINodeUpdate(n, old *storagev1.CSINode) field.ErrorList {
	errs := validateCSINode(n)
	before := map[string]*storagev1.CSINodeDriver{} // names are unique
	for i := range old.Spec.Drivers {
		before[old.Spec.Drivers[i].Name] = &old.Spec.Drivers[i]
	}
	for _, is := range n.Spec.Drivers {
		if stored, ok := before[is.Name]; ok {
			was := *stored
			is.Allocatable, was.Allocatable = nil, nil
			errs = append(errs, apivalidation.ValidateImmutableField(is, was, field.NewPath("spec", "drivers"))...)
		}
	}
	return errs
}

func validateCSIDriver(d *storagev1.CSIDriver) field.ErrorList {
	const shortestPeriod, shortestToken, longestToken = 10, 600, 1 << 32
	s, at := &d.Spec, field.NewPath("spec")
	var errs field.ErrorList
	for _, f := range []struct {
		name  string
		value *bool
	}{{"attachedRequired", s.AttachRequired}, {"podInfoOnMount", s.PodInfoOnMount},
		{"storageCapacity", s.StorageCapacity}, {"seLinuxMount", s.SELinuxMount},
		{"preventPodSchedulingIfMissing", s.PreventPodSchedulingIfMissing}} {
		if f.value == nil {
			errs = append(errs, field.Required(at.Child(f.name), ""))
		}
	}
	if p := s.FSGroupPolicy; p != nil && *p != storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy &&
		*p != storagev1.FileFSGroupPolicy && *p != storagev1.NoneFSGroupPolicy {
		errs = append(errs, field.NotSupported(at.Child("fsGroupPolicy"), *p,
			[]storagev1.FSGroupPolicy{storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy,
				storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy}))
	}
	audiences := sets.New[string]()
	for i, t := range s.TokenRequests {
		at := at.Child("tokenRequests").Index(i)
		if audiences.Has(t.Audience) {
			errs = append(errs, field.Duplicate(at.Child("audience"), t.Audience))
			continue
		}
		audiences.Insert(t.Audience)
		switch e := t.ExpirationSeconds; {
		case e == nil:
		case *e < shortestToken:
			errs = append(errs,
				field.Invalid(at.Child("expirationSeconds"), *e, "may not specify a duration less than 10 minutes"))
		case *e > longestToken:
			errs = append(errs,
				field.Invalid(at.Child("expirationSeconds"), *e, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	for _, m := range s.VolumeLifecycleModes {
		if m != storagev1.VolumeLifecyclePersistent && m != storagev1.VolumeLifecycleEphemeral {
			errs = append(errs,
				field.NotSupported(at.Child("volumeLifecycleModes"), m,
					[]storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent,
						storagev1.VolumeLifecycleEphemeral}))
		}
	}
	if p := s.NodeAllocatableUpdatePeriodSeconds; p != nil && *p < shortestPeriod {
		errs = append(errs, field.Invalid(at.Child("nodeAllocatableUpdatePeriodSeconds"), *p,
			"must be greater than or equal to 10 seconds"))
	}
	if s.ServiceAccountTokenInSecrets != nil && len(s.TokenRequests) == 0 {
		errs = append(errs, field.Invalid(at.Child("serviceAccountTokenInSecrets"), *s.ServiceAccountTokenInSecrets,
			"serviceAccountTokenInSecrets is set but no tokenRequests are specified"))
	}
	return errs
}

func validateCSIDriverUpdate(d, old *storagev1.CSIDriver) field.ErrorList {
	errs := validateCSIDriver(d)
	errs = append(errs, apivalidation.ValidateImmutableField(d.Spec.AttachRequired, old.Spec.AttachRequired,
		field.NewPath("spec", "attachedRequired"))...)
	return append(errs, apivalidation.ValidateImmutableField(d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes,
		field.NewPath("spec", "volumeLifecycleModes"))...)
}

func csiDriverWarnings(_ context.Context, obj, old runtime.Object) []string {
	d := obj.(*storagev1.CSIDriver)
	if old != nil && apiequality.Semantic.DeepEqual(old.(*storagev1.CSIDriver).Spec.TokenRequests,
		d.Spec.TokenRequests) {
		return nil
	}
	if len(d.Spec.TokenRequests) > 0 && d.Spec.ServiceAccountTokenInSecrets == nil {
		return []string{
			"spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"}
	}
	return nil
}

func validateCSIStorageCapacity(c *storagev1.CSIStorageCapacity) field.ErrorList {
	return validateStorageCapacity(c, false)
}

func validateStorageCapacity(c *storagev1.CSIStorageCapacity, badLabels bool) field.ErrorList {
	errs := metav1validation.ValidateLabelSelector(c.NodeTopology,
		metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: badLabels},
		field.NewPath("nodeTopology"))
	errs = append(errs, rules.Messages(field.NewPath("storageClassName"), c.StorageClassName,
		apivalidation.NameIsDNSSubdomain(c.StorageClassName, false))...)
	if c.Capacity != nil {
		errs = append(errs, rules.NonNegativeQuantity(*c.Capacity, field.NewPath("capacity"))...)
	}
	return errs
}

func validateCSIStorageCapacityUpdate(c, old *storagev1.CSIStorageCapacity) field.ErrorList {
	badLabels := len(metav1validation.ValidateLabelSelector(old.NodeTopology,
		metav1validation.LabelSelectorValidationOptions{}, nil)) > 0
	errs := validateStorageCapacity(c, badLabels)
	errs = append(errs, apivalidation.ValidateImmutableField(c.NodeTopology, old.NodeTopology,
		field.NewPath("nodeTopology"))...)
	return append(errs, apivalidation.ValidateImmutableField(c.StorageClassName, old.StorageClassName,
		field.NewPath("storageClassName"))...)
}

func validateVolumeAttributesClass(c *storagev1.VolumeAttributesClass) field.ErrorList {
	return append(validateProvisioner(c.DriverName, field.NewPath("driverName")),
		validateParameters(c.Parameters, false)...)
}

func validateVolumeAttributesClassUpdate(c, old *storagev1.VolumeAttributesClass) field.ErrorList {
	var errs field.ErrorList
	if c.DriverName != old.DriverName {
		errs = append(errs, field.Forbidden(field.NewPath("driverName"), "updates to driverName are forbidden."))
	}
	if !maps.Equal(c.Parameters, old.Parameters) {
		errs = append(errs, field.Forbidden(field.NewPath("parameters"), "updates to parameters are forbidden."))
	}
	return append(errs, validateVolumeAttributesClass(c)...)
}
