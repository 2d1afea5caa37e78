package validation

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func persistentVolume(v *corev1.PersistentVolume) field.ErrorList {
	return volumeSpec(&v.Spec, false, false, field.NewPath("spec"))
}

// volumeSpec checks a volume; an inline one, of an attachment, has no life of its
// own. keptValues says that its affinity may have values that no label can have.
func volumeSpec(v *corev1.PersistentVolumeSpec, inline, keptValues bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if inline {
		if v.ClaimRef != nil {
			errs = append(errs, field.Forbidden(at.Child("claimRef"), "may not be specified in the context of inline volumes"))
		}
		if len(v.Capacity) != 0 {
			errs = append(errs, field.Forbidden(at.Child("capacity"), "may not be specified in the context of inline volumes"))
		}
		if v.CSI == nil {
			errs = append(errs, field.Required(at.Child("csi"), "has to be specified in the context of inline volumes"))
		}
	}
	if len(v.AccessModes) == 0 {
		errs = append(errs, field.Required(at.Child("accessModes"), ""))
	}
	errs = append(errs, accessModes(v.AccessModes, at.Child("accessModes"))...)
	if inline {
		errs = append(errs, inlineVolume(v, at)...)
	} else {
		errs = append(errs, ownVolume(v, at)...)
	}
	if a := v.NodeAffinity; a != nil {
		at := at.Child("nodeAffinity", "required")
		if a.Required == nil {
			errs = append(errs, field.Required(at, "must specify required node constraints"))
		} else {
			errs = append(errs, nodeSelector(a.Required, keptValues, at)...)
		}
	}
	of := &sources{at: at}
	persistentSources(&v.PersistentVolumeSource, of)
	if of.n == 0 {
		of.errs = append(of.errs, field.Required(at, "must specify a volume type"))
	}
	errs = append(errs, of.errs...)
	if s := v.HostPath; s != nil && path.Clean(s.Path) == "/" && v.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		errs = append(errs, field.Forbidden(at.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
	}
	if v.Local != nil && v.NodeAffinity == nil {
		errs = append(errs, field.Required(at.Child("nodeAffinity"), "Local volume requires node affinity"))
	}
	if c := v.VolumeAttributesClassName; c != nil {
		at := at.Child("volumeAttributesClassName")
		if *c == "" {
			errs = append(errs, field.Required(at, "an empty string is disallowed"))
		} else {
			errs = append(errs, messages(at, *c, apivalidation.NameIsDNSSubdomain(*c, false))...)
		}
	}
	if v.VolumeAttributesClassName != nil && v.CSI == nil {
		errs = append(errs, field.Required(at.Child("csi"), "has to be specified when using volumeAttributesClassName"))
	}
	return errs
}

// inlineVolume checks what only makes sense for a volume with a life of its own.
func inlineVolume(v *corev1.PersistentVolumeSpec, at *field.Path) field.ErrorList {
	const inline = "in the context of inline volumes"
	var errs field.ErrorList
	if p := v.PersistentVolumeReclaimPolicy; p != "" && p != corev1.PersistentVolumeReclaimRetain {
		errs = append(errs, field.Forbidden(at.Child("persistentVolumeReclaimPolicy"), fmt.Sprintf("may only be %s %s", corev1.PersistentVolumeReclaimRetain, inline)))
	}
	if v.StorageClassName != "" {
		errs = append(errs, field.Forbidden(at.Child("storageClassName"), "may not be specified "+inline))
	}
	if v.VolumeMode != nil && *v.VolumeMode != corev1.PersistentVolumeFilesystem {
		errs = append(errs, field.Forbidden(at.Child("volumeMode"), fmt.Sprintf("may not specify volumeMode other than %s %s", corev1.PersistentVolumeFilesystem, inline)))
	}
	return errs
}

func ownVolume(v *corev1.PersistentVolumeSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(v.Capacity) == 0 {
		errs = append(errs, field.Required(at.Child("capacity"), ""))
	}
	if _, ok := v.Capacity[corev1.ResourceStorage]; !ok || len(v.Capacity) > 1 {
		errs = append(errs, field.NotSupported(at.Child("capacity"), v.Capacity, []corev1.ResourceName{corev1.ResourceStorage}))
	}
	for _, name := range sortedNames(v.Capacity) {
		q, at := v.Capacity[name], at.Child("capacity").Key(string(name))
		errs = append(errs, validQuantity(q, at)...)
		if q.Sign() <= 0 {
			errs = append(errs, field.Invalid(at, q.String(), "must be greater than zero"))
		}
	}
	if p := v.PersistentVolumeReclaimPolicy; p != "" {
		errs = append(errs, oneOf(string(p), at.Child("persistentVolumeReclaimPolicy"), string(corev1.PersistentVolumeReclaimDelete), string(corev1.PersistentVolumeReclaimRecycle), string(corev1.PersistentVolumeReclaimRetain))...)
	}
	if c := v.StorageClassName; c != "" {
		errs = append(errs, messages(at.Child("storageClassName"), c, apivalidation.NameIsDNSSubdomain(c, false))...)
	}
	return append(errs, volumeMode(v.VolumeMode, at.Child("volumeMode"))...)
}

func csiVolume(s *corev1.CSIPersistentVolumeSource, at *field.Path) field.ErrorList {
	errs := driverName(s.Driver, at.Child("driver"))
	errs = append(errs, required(at.Child("volumeHandle"), s.VolumeHandle)...)
	for _, f := range []struct {
		name string
		ref  *corev1.SecretReference
	}{{"controllerPublishSecretRef", s.ControllerPublishSecretRef}, {"controllerExpandSecretRef", s.ControllerExpandSecretRef},
		{"nodePublishSecretRef", s.NodePublishSecretRef}, {"nodeExpandSecretRef", s.NodeExpandSecretRef}} {
		if f.ref == nil {
			continue
		}
		name, namespace := at.Child(f.name, "name"), at.Child(f.name, "namespace")
		if f.ref.Name == "" {
			errs = append(errs, field.Required(name, ""))
		} else {
			errs = append(errs, messages(name, f.ref.Name, validation.IsDNS1123Subdomain(f.ref.Name))...)
		}
		if f.ref.Namespace == "" {
			errs = append(errs, field.Required(namespace, ""))
		} else {
			errs = append(errs, messages(namespace, f.ref.Namespace, validation.IsDNS1123Label(f.ref.Namespace))...)
		}
	}
	return errs
}

func persistentVolumeUpdate(v, old *corev1.PersistentVolume) field.ErrorList {
	spec := field.NewPath("spec")
	a := old.Spec.NodeAffinity
	errs := volumeSpec(&v.Spec, false, a != nil && hasBadTerms(a.Required), spec)
	is := v.Spec.PersistentVolumeSource.DeepCopy()
	if is.CSI != nil && old.Spec.CSI != nil && old.Spec.CSI.ControllerExpandSecretRef == nil {
		is.CSI.ControllerExpandSecretRef = nil // may be named later
	}
	if !apiequality.Semantic.DeepEqual(is, &old.Spec.PersistentVolumeSource) {
		errs = append(errs, field.Forbidden(spec.Child("persistentvolumesource"), fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v",
			diff.Diff(old.Spec.PersistentVolumeSource, v.Spec.PersistentVolumeSource))))
	}
	errs = append(errs, apivalidation.ValidateImmutableField(v.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	if a != nil && !apiequality.Semantic.DeepEqual(v.Spec.NodeAffinity, a) {
		errs = append(errs, field.Invalid(field.NewPath("nodeAffinity"), v.Spec.NodeAffinity, apivalidation.FieldImmutableErrorMsg+", except for updating from beta label to GA"))
	}
	if old.Spec.VolumeAttributesClassName != nil && v.Spec.VolumeAttributesClassName == nil {
		errs = append(errs, field.Forbidden(spec.Child("volumeAttributesClassName"), "update from non-nil value to nil is forbidden"))
	}
	return errs
}
