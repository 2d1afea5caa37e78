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
	at := field.NewPath("spec")
	var errs field.ErrorList
	if len(v.Spec.AccessModes) == 0 {
		errs = append(errs, field.Required(at.Child("accessModes"), ""))
	}
	errs = append(errs, accessModes(v.Spec.AccessModes, at.Child("accessModes"))...)
	if len(v.Spec.Capacity) == 0 {
		errs = append(errs, field.Required(at.Child("capacity"), ""))
	}
	for _, name := range sortedNames(v.Spec.Capacity) {
		q := v.Spec.Capacity[name]
		if q.Sign() <= 0 {
			errs = append(errs, field.Invalid(at.Child("capacity").Key(string(name)), q.String(), "must be greater than zero"))
		}
	}
	if p := v.Spec.PersistentVolumeReclaimPolicy; p != "" {
		errs = append(errs, oneOf(string(p), at.Child("persistentVolumeReclaimPolicy"), string(corev1.PersistentVolumeReclaimDelete), string(corev1.PersistentVolumeReclaimRecycle), string(corev1.PersistentVolumeReclaimRetain))...)
	}
	errs = append(errs, volumeMode(v.Spec.VolumeMode, at.Child("volumeMode"))...)
	if a := v.Spec.NodeAffinity; a != nil && a.Required != nil {
		errs = append(errs, nodeSelector(a.Required, at.Child("nodeAffinity", "required"))...)
	}
	switch n := countSources(&v.Spec.PersistentVolumeSource); {
	case n == 0:
		errs = append(errs, field.Required(at, "must specify a volume type"))
	case n > 1:
		errs = append(errs, field.Forbidden(at, "may not specify more than 1 volume type"))
	}
	if s := v.Spec.HostPath; s != nil {
		errs = append(errs, hostPath(s, at.Child("hostPath"))...)
		if s.Path == "/" && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
			errs = append(errs, field.Forbidden(at.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
		}
	}
	if s := v.Spec.Local; s != nil {
		errs = append(errs, required(at.Child("local", "path"), s.Path)...)
		if v.Spec.NodeAffinity == nil {
			errs = append(errs, field.Required(at.Child("nodeAffinity"), "Local volume requires node affinity"))
		}
	}
	if s := v.Spec.NFS; s != nil {
		errs = append(errs, nfs(s, at.Child("nfs"))...)
	}
	if s := v.Spec.CSI; s != nil {
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
