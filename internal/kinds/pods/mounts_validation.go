package pods

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// mounts validates volume mounts. For paths inside volumes and mount modes, upstream's errors are
// about the list, not its item.
func (k *podChecker) mounts(c *corev1.Container, list *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths := sets.New[string]()
	devices, deviceNames := sets.New[string](), sets.New[string]()
	for _, d := range c.VolumeDevices {
		devices.Insert(d.DevicePath)
		deviceNames.Insert(d.Name)
	}
	for i := range c.VolumeMounts {
		m, at := &c.VolumeMounts[i], list.Index(i)
		if m.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		v, ok := k.volumes[m.Name]
		if !ok {
			errs = append(errs, field.NotFound(at.Child("name"), m.Name))
		}
		if m.MountPath == "" {
			errs = append(errs, field.Required(at.Child("mountPath"), ""))
		}
		if paths.Has(m.MountPath) {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths.Insert(m.MountPath)
		if deviceNames.Has(m.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), m.Name, "must not already exist in volumeDevices"))
		}
		if devices.Has(m.MountPath) {
			errs = append(errs,
				field.Invalid(at.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices"))
		}
		if m.SubPath != "" {
			errs = append(errs, rules.DescendingPath(m.SubPath, list.Child("subPath"))...)
		}
		if m.SubPathExpr != "" {
			if m.SubPath != "" {
				errs = append(errs,
					field.Invalid(at.Child("subPathExpr"), m.SubPathExpr,
						"subPathExpr and subPath are mutually exclusive"))
			}
			errs = append(errs, rules.DescendingPath(m.SubPathExpr, list.Child("subPathExpr"))...)
		}
		if p := m.MountPropagation; p != nil {
			errs = append(errs,
				rules.Supported(string(*p), list.Child("mountPropagation"),
					string(corev1.MountPropagationBidirectional), string(corev1.MountPropagationHostToContainer),
					string(corev1.MountPropagationNone))...)
			if *p == corev1.MountPropagationBidirectional && !privileged(c) {
				errs = append(errs,
					field.Forbidden(list.Child("mountPropagation"),
						"Bidirectional mount propagation is available only to privileged containers"))
			}
		}
		errs = append(errs, validateRecursiveReadOnly(m, list.Child("recursiveReadOnly"))...)
		if ok && v.Image != nil && m.SubPathExpr != "" {
			errs = append(errs, field.Forbidden(at.Child("subPathExpr"), "may not be used with image volumes"))
		}
	}
	return errs
}

func validateRecursiveReadOnly(m *corev1.VolumeMount, at *field.Path) field.ErrorList {
	if m.RecursiveReadOnly == nil {
		return nil
	}
	var errs field.ErrorList
	switch *m.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyDisabled:
	case corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible:
		if !m.ReadOnly {
			errs = append(errs, field.Forbidden(at, "may only be specified when readOnly is true"))
		}
		if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
			errs = append(errs,
				field.Forbidden(at, "may only be specified when mountPropagation is None or not specified"))
		}
	default:
		errs = append(errs, field.NotSupported(at, *m.RecursiveReadOnly,
			[]corev1.RecursiveReadOnlyMode{corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled,
				corev1.RecursiveReadOnlyIfPossible}))
	}
	return errs
}

func (k *podChecker) devices(c *corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths, names, mounted, mountNames := sets.New[string](), sets.New[string](), sets.New[string](), sets.New[string]()
	for _, m := range c.VolumeMounts {
		mounted.Insert(m.MountPath)
		mountNames.Insert(m.Name)
	}
	for i, d := range c.VolumeDevices {
		name, device := at.Index(i).Child("name"), at.Index(i).Child("devicePath")
		if d.Name == "" {
			errs = append(errs, field.Required(name, ""))
		} else if names.Has(d.Name) {
			errs = append(errs, field.Invalid(name, d.Name, "must be unique"))
		}
		names.Insert(d.Name)
		if v, ok := k.volumes[d.Name]; !ok {
			errs = append(errs, field.NotFound(name, d.Name))
		} else if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
			errs = append(errs,
				field.Invalid(name, d.Name,
					"can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		if mountNames.Has(d.Name) {
			errs = append(errs, field.Invalid(name, d.Name, "must not already exist in volumeMounts"))
		}
		if d.DevicePath == "" {
			errs = append(errs, field.Required(device, ""))
		}
		if paths.Has(d.DevicePath) {
			errs = append(errs, field.Invalid(device, d.DevicePath, "must be unique"))
		}
		if len(rules.NoBacksteps(d.DevicePath, device)) > 0 {
			errs = append(errs, field.Invalid(device, d.DevicePath, "can not contain backsteps ('..')"))
		} else {
			paths.Insert(d.DevicePath)
		}
		if mounted.Has(d.DevicePath) {
			errs = append(errs, field.Invalid(device, d.DevicePath, "must not already exist as a path in volumeMounts"))
		}
	}
	return errs
}
