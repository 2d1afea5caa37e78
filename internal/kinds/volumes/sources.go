package volumes

import (
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// Sources counts the volume types of one volume; only the first is validated further.
type Sources struct {
	At   *field.Path
	N    int
	Errs field.ErrorList
}

// Take validates one source of a volume; a second one is rejected.
func (s *Sources) Take(name string, check func(at *field.Path) field.ErrorList) {
	s.TakeAs(name, name, check)
}

// TakeAs is Take for a type with another name in the error about a second source.
func (s *Sources) TakeAs(name, surplus string, check func(at *field.Path) field.ErrorList) {
	if s.N++; s.N > 1 {
		s.Errs = append(s.Errs, field.Forbidden(s.At.Child(surplus), "may not specify more than 1 volume type"))
		return
	}
	if check != nil {
		s.Errs = append(s.Errs, check(s.At.Child(name))...)
	}
}

// RemoteSources are the in-tree volume types of storage services; a node without a driver for one
// reports that itself.
func RemoteSources(v *corev1.VolumeSource, s *Sources) {
	if r := v.GitRepo; r != nil {
		s.Take("gitRepo", func(at *field.Path) field.ErrorList {
			errs := rules.Required(at.Child("repository"), r.Repository)
			return append(errs, rules.DescendingPath(r.Directory, at.Child("directory"))...)
		})
	}
	if r := v.ISCSI; r != nil {
		s.Take("iscsi", func(at *field.Path) field.ErrorList {
			return validateISCSI(r.TargetPortal, r.IQN, r.Lun, r.InitiatorName, at)
		})
	}
	if r := v.RBD; r != nil {
		s.Take("rbd", func(at *field.Path) field.ErrorList {
			var errs field.ErrorList
			if len(r.CephMonitors) == 0 {
				errs = append(errs, field.Required(at.Child("monitors"), ""))
			}
			return append(errs, rules.Required(at.Child("image"), r.RBDImage)...)
		})
	}
	if r := v.CephFS; r != nil {
		s.TakeAs("cephfs", "cephFS", func(at *field.Path) field.ErrorList {
			if len(r.Monitors) == 0 {
				return field.ErrorList{field.Required(at.Child("monitors"), "")}
			}
			return nil
		})
	}
	if r := v.Glusterfs; r != nil {
		s.Take("glusterfs", func(at *field.Path) field.ErrorList {
			return append(rules.Required(at.Child("endpoints"), r.EndpointsName),
				rules.Required(at.Child("path"), r.Path)...)
		})
	}
	if r := v.GCEPersistentDisk; r != nil {
		s.TakeAs("persistentDisk", "gcePersistentDisk",
			func(at *field.Path) field.ErrorList { return rules.Required(at.Child("pdName"), r.PDName) })
	}
	if r := v.AWSElasticBlockStore; r != nil {
		s.Take("awsElasticBlockStore",
			func(at *field.Path) field.ErrorList { return rules.Required(at.Child("volumeID"), r.VolumeID) })
	}
	if r := v.Cinder; r != nil {
		s.Take("cinder",
			func(at *field.Path) field.ErrorList { return rules.Required(at.Child("volumeID"), r.VolumeID) })
	}
	if r := v.AzureFile; r != nil {
		s.Take("azureFile", func(at *field.Path) field.ErrorList {
			return append(rules.Required(at.Child("secretName"), r.SecretName),
				rules.Required(at.Child("shareName"), r.ShareName)...)
		})
	}
	if r := v.AzureDisk; r != nil {
		s.Take("azureDisk", func(at *field.Path) field.ErrorList {
			return validateAzureDisk(r, at)
		})
	}
	if r := v.VsphereVolume; r != nil {
		s.Take("vsphereVolume",
			func(at *field.Path) field.ErrorList { return rules.Required(at.Child("volumePath"), r.VolumePath) })
	}
	if r := v.PortworxVolume; r != nil {
		s.Take("portworxVolume",
			func(at *field.Path) field.ErrorList { return rules.Required(at.Child("volumeID"), r.VolumeID) })
	}
	if r := v.FlexVolume; r != nil {
		s.Take("flexVolume",
			func(at *field.Path) field.ErrorList { return rules.Required(at.Child("driver"), r.Driver) })
	}
	inlineSource(v, s)
}

// ValidateHostPath validates a file or directory of the node.
func ValidateHostPath(v *corev1.HostPathVolumeSource, at *field.Path) field.ErrorList {
	if v.Path == "" {
		return field.ErrorList{field.Required(at.Child("path"), "")}
	}
	errs := rules.NoBacksteps(v.Path, at.Child("path"))
	known := []corev1.HostPathType{corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory,
		corev1.HostPathFileOrCreate,
		corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev}
	if v.Type != nil && !slices.Contains(known, *v.Type) {
		slices.Sort(known)
		errs = append(errs, field.NotSupported(at.Child("type"), *v.Type, known))
	}
	return errs
}

// ValidateNFS validates a directory of an NFS server.
func ValidateNFS(v *corev1.NFSVolumeSource, at *field.Path) field.ErrorList {
	errs := rules.Required(at.Child("server"), v.Server)
	errs = append(errs, rules.Required(at.Child("path"), v.Path)...)
	if !path.IsAbs(v.Path) {
		errs = append(errs, field.Invalid(at.Child("path"), v.Path, "must be an absolute path"))
	}
	return errs
}
