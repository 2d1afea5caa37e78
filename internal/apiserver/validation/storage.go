package validation

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func persistentVolume(v *corev1.PersistentVolume) field.ErrorList {
	return volumeSpec(&v.Spec, false, field.NewPath("spec"))
}

// volumeSpec checks a volume; an inline one, of an attachment, has no life of its own.
func volumeSpec(v *corev1.PersistentVolumeSpec, inline bool, at *field.Path) field.ErrorList {
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
	if len(v.Capacity) == 0 && !inline {
		errs = append(errs, field.Required(at.Child("capacity"), ""))
	}
	for _, name := range sortedNames(v.Capacity) {
		q := v.Capacity[name]
		if q.Sign() <= 0 {
			errs = append(errs, field.Invalid(at.Child("capacity").Key(string(name)), q.String(), "must be greater than zero"))
		}
	}
	if p := v.PersistentVolumeReclaimPolicy; p != "" {
		errs = append(errs, oneOf(string(p), at.Child("persistentVolumeReclaimPolicy"), string(corev1.PersistentVolumeReclaimDelete), string(corev1.PersistentVolumeReclaimRecycle), string(corev1.PersistentVolumeReclaimRetain))...)
	}
	errs = append(errs, volumeMode(v.VolumeMode, at.Child("volumeMode"))...)
	if a := v.NodeAffinity; a != nil && a.Required != nil {
		errs = append(errs, nodeSelector(a.Required, at.Child("nodeAffinity", "required"))...)
	}
	switch n := countSources(&v.PersistentVolumeSource); {
	case n == 0:
		errs = append(errs, field.Required(at, "must specify a volume type"))
	case n > 1:
		errs = append(errs, field.Forbidden(at, "may not specify more than 1 volume type"))
	}
	if s := v.HostPath; s != nil {
		errs = append(errs, hostPath(s, at.Child("hostPath"))...)
		if s.Path == "/" && v.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
			errs = append(errs, field.Forbidden(at.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
		}
	}
	if s := v.Local; s != nil {
		errs = append(errs, required(at.Child("local", "path"), s.Path)...)
		if v.NodeAffinity == nil {
			errs = append(errs, field.Required(at.Child("nodeAffinity"), "Local volume requires node affinity"))
		}
	}
	if s := v.NFS; s != nil {
		errs = append(errs, nfs(s, at.Child("nfs"))...)
	}
	if s := v.CSI; s != nil {
		errs = append(errs, required(at.Child("csi", "driver"), s.Driver)...)
		errs = append(errs, required(at.Child("csi", "volumeHandle"), s.VolumeHandle)...)
	}
	return errs
}

// countSources counts the volume types that are set.
func countSources(s *corev1.PersistentVolumeSource) int {
	n := 0
	for v, i := reflect.ValueOf(s).Elem(), 0; i < v.NumField(); i++ {
		if !v.Field(i).IsNil() {
			n++
		}
	}
	return n
}

func persistentVolumeUpdate(v, old *corev1.PersistentVolume) field.ErrorList {
	errs := persistentVolume(v)
	if !apiequality.Semantic.DeepEqual(v.Spec.PersistentVolumeSource, old.Spec.PersistentVolumeSource) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "persistentvolumesource"), fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v",
			diff.Diff(old.Spec.PersistentVolumeSource, v.Spec.PersistentVolumeSource))))
	}
	return append(errs, immutableSelector(v.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
}

func persistentVolumeClaim(c *corev1.PersistentVolumeClaim) field.ErrorList {
	return claimSpec(&c.Spec, field.NewPath("spec"))
}

func persistentVolumeClaimUpdate(c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	errs := persistentVolumeClaim(c)
	spec := field.NewPath("spec")
	rest := c.Spec.DeepCopy()
	if old.Spec.VolumeName == "" {
		rest.VolumeName = "" // binding, by the controller
	}
	if old.Spec.StorageClassName == nil {
		rest.StorageClassName = nil // a default class given later
	}
	if old.Status.Phase == corev1.ClaimBound {
		rest.VolumeAttributesClassName = old.Spec.VolumeAttributesClassName
		if q, was := rest.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]; q.Cmp(was) != 0 {
			if have := old.Status.Capacity[corev1.ResourceStorage]; q.Cmp(have) < 0 {
				errs = append(errs, field.Forbidden(spec.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
			}
			rest.Resources.Requests[corev1.ResourceStorage] = was
		}
	}
	if !apiequality.Semantic.DeepEqual(rest, &old.Spec) {
		errs = append(errs, field.Forbidden(spec, fmt.Sprintf("spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n%v", diff.Diff(&old.Spec, rest))))
	}
	return errs
}
