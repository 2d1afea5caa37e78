package volumes

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func validatePersistentVolume(v *corev1.PersistentVolume) field.ErrorList {
	return ValidateVolumeSpec(&v.Spec, false, false, field.NewPath("spec"))
}

// ValidateVolumeSpec validates a volume; an inline one, of an attachment, has no lifecycle of its
// own. keptValues: its affinity may have values that are invalid as labels.
func ValidateVolumeSpec(v *corev1.PersistentVolumeSpec, inline, keptValues bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if inline {
		if v.ClaimRef != nil {
			errs = append(errs,
				field.Forbidden(at.Child("claimRef"), "may not be specified in the context of inline volumes"))
		}
		if len(v.Capacity) != 0 {
			errs = append(errs,
				field.Forbidden(at.Child("capacity"), "may not be specified in the context of inline volumes"))
		}
		if v.CSI == nil {
			errs = append(errs, field.Required(at.Child("csi"), "has to be specified in the context of inline volumes"))
		}
	}
	if len(v.AccessModes) == 0 {
		errs = append(errs, field.Required(at.Child("accessModes"), ""))
	}
	errs = append(errs, validateAccessModes(v.AccessModes, at.Child("accessModes"))...)
	if inline {
		errs = append(errs, validateInlineVolume(v, at)...)
	} else {
		errs = append(errs, validateOwnVolume(v, at)...)
	}
	if a := v.NodeAffinity; a != nil {
		at := at.Child("nodeAffinity", "required")
		if a.Required == nil {
			errs = append(errs, field.Required(at, "must specify required node constraints"))
		} else {
			errs = append(errs, rules.NodeSelector(a.Required, keptValues, at)...)
		}
	}
	of := &Sources{At: at}
	persistentSources(&v.PersistentVolumeSource, of)
	if of.N == 0 {
		of.Errs = append(of.Errs, field.Required(at, "must specify a volume type"))
	}
	errs = append(errs, of.Errs...)
	if s := v.HostPath; s != nil && path.Clean(s.Path) == "/" &&
		v.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		errs = append(errs, field.Forbidden(at.Child("persistentVolumeReclaimPolicy"),
			"may not be 'recycle' for a hostPath mount of '/'"))
	}
	if v.Local != nil && v.NodeAffinity == nil {
		errs = append(errs, field.Required(at.Child("nodeAffinity"), "Local volume requires node affinity"))
	}
	if c := v.VolumeAttributesClassName; c != nil {
		at := at.Child("volumeAttributesClassName")
		if *c == "" {
			errs = append(errs, field.Required(at, "an empty string is disallowed"))
		} else {
			errs = append(errs, rules.Messages(at, *c, apivalidation.NameIsDNSSubdomain(*c, false))...)
		}
	}
	if v.VolumeAttributesClassName != nil && v.CSI == nil {
		errs = append(errs, field.Required(at.Child("csi"), "has to be specified when using volumeAttributesClassName"))
	}
	return errs
}

// validateInlineVolume rejects fields that apply only to a volume with its own lifecycle.
func validateInlineVolume(v *corev1.PersistentVolumeSpec, at *field.Path) field.ErrorList {
	const inline = "in the context of inline volumes"
	var errs field.ErrorList
	if p := v.PersistentVolumeReclaimPolicy; p != "" && p != corev1.PersistentVolumeReclaimRetain {
		errs = append(errs, field.Forbidden(at.Child("persistentVolumeReclaimPolicy"),
			fmt.Sprintf("may only be %s %s", corev1.PersistentVolumeReclaimRetain, inline)))
	}
	if v.StorageClassName != "" {
		errs = append(errs, field.Forbidden(at.Child("storageClassName"), "may not be specified "+inline))
	}
	if v.VolumeMode != nil && *v.VolumeMode != corev1.PersistentVolumeFilesystem {
		errs = append(errs, field.Forbidden(at.Child("volumeMode"),
			fmt.Sprintf("may not specify volumeMode other than %s %s", corev1.PersistentVolumeFilesystem, inline)))
	}
	return errs
}

func validateOwnVolume(v *corev1.PersistentVolumeSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(v.Capacity) == 0 {
		errs = append(errs, field.Required(at.Child("capacity"), ""))
	}
	if _, ok := v.Capacity[corev1.ResourceStorage]; !ok || len(v.Capacity) > 1 {
		errs = append(errs, field.NotSupported(at.Child("capacity"), v.Capacity,
			[]corev1.ResourceName{corev1.ResourceStorage}))
	}
	for _, name := range rules.SortedNames(v.Capacity) {
		q, at := v.Capacity[name], at.Child("capacity").Key(string(name))
		errs = append(errs, rules.ValidQuantity(q, at)...)
		if q.Sign() <= 0 {
			errs = append(errs, field.Invalid(at, q.String(), "must be greater than zero"))
		}
	}
	if p := v.PersistentVolumeReclaimPolicy; p != "" {
		errs = append(errs, rules.OneOf(string(p), at.Child("persistentVolumeReclaimPolicy"),
			string(corev1.PersistentVolumeReclaimDelete), string(corev1.PersistentVolumeReclaimRecycle),
			string(corev1.PersistentVolumeReclaimRetain))...)
	}
	if c := v.StorageClassName; c != "" {
		errs = append(errs, rules.Messages(at.Child("storageClassName"), c,
			apivalidation.NameIsDNSSubdomain(c, false))...)
	}
	return append(errs, validateVolumeMode(v.VolumeMode, at.Child("volumeMode"))...)
}

func validateCSIVolume(s *corev1.CSIPersistentVolumeSource, at *field.Path) field.ErrorList {
	errs := rules.DriverName(s.Driver, at.Child("driver"))
	errs = append(errs, rules.Required(at.Child("volumeHandle"), s.VolumeHandle)...)
	for _, f := range []struct {
		name string
		ref  *corev1.SecretReference
	}{{"controllerPublishSecretRef", s.ControllerPublishSecretRef},
		{"controllerExpandSecretRef", s.ControllerExpandSecretRef},
		{"nodePublishSecretRef", s.NodePublishSecretRef}, {"nodeExpandSecretRef", s.NodeExpandSecretRef}} {
		if f.ref == nil {
			continue
		}
		name, namespace := at.Child(f.name, "name"), at.Child(f.name, "namespace")
		if f.ref.Name == "" {
			errs = append(errs, field.Required(name, ""))
		} else {
			errs = append(errs, rules.Messages(name, f.ref.Name, validation.IsDNS1123Subdomain(f.ref.Name))...)
		}
		if f.ref.Namespace == "" {
			errs = append(errs, field.Required(namespace, ""))
		} else {
			errs = append(errs,
				rules.Messages(namespace, f.ref.Namespace, validation.IsDNS1123Label(f.ref.Namespace))...)
		}
	}
	return errs
}

func validatePersistentVolumeUpdate(v, old *corev1.PersistentVolume) field.ErrorList {
	spec := field.NewPath("spec")
	a := old.Spec.NodeAffinity
	errs := ValidateVolumeSpec(&v.Spec, false, a != nil && rules.HasBadTerms(a.Required), spec)
	is := v.Spec.PersistentVolumeSource.DeepCopy()
	if is.CSI != nil && old.Spec.CSI != nil && old.Spec.CSI.ControllerExpandSecretRef == nil {
		is.CSI.ControllerExpandSecretRef = nil // may be set later
	}
	if !apiequality.Semantic.DeepEqual(is, &old.Spec.PersistentVolumeSource) {
		errs = append(errs, field.Forbidden(spec.Child("persistentvolumesource"),
			fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v",
				rules.Diff(old.Spec.PersistentVolumeSource, v.Spec.PersistentVolumeSource))))
	}
	errs = append(errs, apivalidation.ValidateImmutableField(v.Spec.VolumeMode, old.Spec.VolumeMode,
		field.NewPath("volumeMode"))...)
	if a != nil && !apiequality.Semantic.DeepEqual(v.Spec.NodeAffinity, a) {
		errs = append(errs, field.Invalid(field.NewPath("nodeAffinity"), v.Spec.NodeAffinity,
			apivalidation.FieldImmutableErrorMsg+", except for updating from beta label to GA"))
	}
	if old.Spec.VolumeAttributesClassName != nil && v.Spec.VolumeAttributesClassName == nil {
		errs = append(errs, field.Forbidden(spec.Child("volumeAttributesClassName"),
			"update from non-nil value to nil is forbidden"))
	}
	return errs
}

func persistentVolumeWarnings(v *corev1.PersistentVolume) []string {
	var out rules.Warnings
	for _, a := range [...][2]string{
		{corev1.BetaStorageClassAnnotation, `deprecated since v1.8; use "storageClassName" attribute instead`},
		{corev1.MountOptionAnnotation, `deprecated since v1.31; use "mountOptions" attribute instead`},
	} {
		if _, ok := v.Annotations[a[0]]; ok {
			out.Add(field.NewPath("metadata", "annotations").Key(a[0]), "%s", a[1])
		}
	}
	s := &v.Spec
	if s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		out.Add(rules.SpecPath.Child("persistentVolumeReclaimPolicy"),
			"The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	}
	if s.NodeAffinity != nil && s.NodeAffinity.Required != nil {
		for i := range s.NodeAffinity.Required.NodeSelectorTerms {
			out = append(out, rules.TermWarnings(&s.NodeAffinity.Required.NodeSelectorTerms[i], false,
				rules.SpecPath.Child("nodeAffinity", "required", "nodeSelectorTerms").Index(i))...)
		}
	}
	for _, gone := range []struct {
		used       bool
		name, text string
	}{
		{s.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
		{s.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
		{s.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
		{s.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
		{s.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
		{s.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
	} {
		if gone.used {
			out.Add(rules.SpecPath.Child(gone.name), "%s", gone.text)
		}
	}
	return out
}
