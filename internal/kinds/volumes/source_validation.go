package volumes

import (
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// persistentSources validates the source of a persistent volume, in upstream's order, which
// determines the source that is rejected as an additional one.
func persistentSources(v *corev1.PersistentVolumeSource, s *Sources) {
	if r := v.HostPath; r != nil {
		s.Take("hostPath", func(at *field.Path) field.ErrorList { return ValidateHostPath(r, at) })
	}
	if r := v.GCEPersistentDisk; r != nil {
		s.TakeAs("persistentDisk", "gcePersistentDisk", func(at *field.Path) field.ErrorList {
			return append(rules.Required(at.Child("pdName"), r.PDName), validatePartition(r.Partition, at)...)
		})
	}
	if r := v.AWSElasticBlockStore; r != nil {
		s.Take("awsElasticBlockStore", func(at *field.Path) field.ErrorList {
			return append(rules.Required(at.Child("volumeID"), r.VolumeID), validatePartition(r.Partition, at)...)
		})
	}
	if r := v.Glusterfs; r != nil {
		s.Take("glusterfs", func(at *field.Path) field.ErrorList {
			errs := append(rules.Required(at.Child("endpoints"), r.EndpointsName),
				rules.Required(at.Child("path"), r.Path)...)
			if n := r.EndpointsNamespace; n != nil {
				if *n == "" {
					return append(errs,
						field.Invalid(at.Child("endpointsNamespace"), *n,
							"if the endpointnamespace is set, it must be a valid namespace name"))
				}
				errs = append(errs,
					rules.Messages(at.Child("endpointsNamespace"), *n, validation.IsDNS1123Label(*n))...)
			}
			return errs
		})
	}
	if r := v.Flocker; r != nil {
		s.Take("flocker", func(at *field.Path) field.ErrorList { return validateFlocker(r, at) })
	}
	if r := v.NFS; r != nil {
		s.Take("nfs", func(at *field.Path) field.ErrorList { return ValidateNFS(r, at) })
	}
	if r := v.RBD; r != nil {
		s.Take("rbd", func(at *field.Path) field.ErrorList { return validateRBD(r.CephMonitors, r.RBDImage, at) })
	}
	if r := v.Quobyte; r != nil {
		s.Take("quobyte", func(at *field.Path) field.ErrorList { return validateQuobyte(r, at) })
	}
	if r := v.CephFS; r != nil {
		s.TakeAs("cephfs", "cephFS", func(at *field.Path) field.ErrorList { return validateMonitors(r.Monitors, at) })
	}
	if r := v.ISCSI; r != nil {
		s.Take("iscsi", func(at *field.Path) field.ErrorList { return validatePersistentISCSI(r, at) })
	}
	if r := v.Cinder; r != nil {
		s.Take("cinder", func(at *field.Path) field.ErrorList {
			return append(rules.Required(at.Child("volumeID"), r.VolumeID), validateSecretOf(r.SecretRef, at)...)
		})
	}
	if r := v.FC; r != nil {
		s.Take("fc", func(at *field.Path) field.ErrorList { return validateFibreChannel(r, at) })
	}
	if r := v.FlexVolume; r != nil {
		s.Take("flexVolume",
			func(at *field.Path) field.ErrorList { return rules.Required(at.Child("driver"), r.Driver) })
	}
	if r := v.AzureFile; r != nil {
		s.Take("azureFile", func(at *field.Path) field.ErrorList {
			errs := append(rules.Required(at.Child("secretName"), r.SecretName),
				rules.Required(at.Child("shareName"), r.ShareName)...)
			if r.SecretNamespace != nil {
				errs = append(errs, rules.Required(at.Child("secretNamespace"), *r.SecretNamespace)...)
			}
			return errs
		})
	}
	if r := v.VsphereVolume; r != nil {
		s.Take("vsphereVolume",
			func(at *field.Path) field.ErrorList { return rules.Required(at.Child("volumePath"), r.VolumePath) })
	}
	if r := v.PhotonPersistentDisk; r != nil {
		s.Take("photonPersistentDisk",
			func(at *field.Path) field.ErrorList { return rules.Required(at.Child("pdID"), r.PdID) })
	}
	if r := v.PortworxVolume; r != nil {
		s.Take("portworxVolume",
			func(at *field.Path) field.ErrorList { return rules.Required(at.Child("volumeID"), r.VolumeID) })
	}
	if r := v.AzureDisk; r != nil {
		s.Take("azureDisk", func(at *field.Path) field.ErrorList { return validateAzureDisk(r, at) })
	}
	if r := v.ScaleIO; r != nil {
		s.Take("scaleIO",
			func(at *field.Path) field.ErrorList { return validateScaleIO(r.Gateway, r.System, r.VolumeName, at) })
	}
	if r := v.Local; r != nil {
		s.Take("local", func(at *field.Path) field.ErrorList {
			if r.Path == "" {
				return field.ErrorList{field.Required(at.Child("path"), "")}
			}
			return rules.NoBacksteps(r.Path, at.Child("path"))
		})
	}
	if r := v.StorageOS; r != nil {
		s.Take("storageos", func(at *field.Path) field.ErrorList {
			errs := validateStorageOS(r.VolumeName, r.VolumeNamespace, at)
			if ref := r.SecretRef; ref != nil {
				errs = append(errs, rules.Required(at.Child("secretRef", "name"), ref.Name)...)
				errs = append(errs, rules.Required(at.Child("secretRef", "namespace"), ref.Namespace)...)
			}
			return errs
		})
	}
	if r := v.CSI; r != nil {
		s.Take("csi", func(at *field.Path) field.ErrorList { return validateCSIVolume(r, at) })
	}
}

func validatePartition(n int32, at *field.Path) field.ErrorList {
	if n < 0 || n > 255 {
		return field.ErrorList{field.Invalid(at.Child("partition"), n, "must be between 1 and 255, inclusive")}
	}
	return nil
}

func validateSecretOf(ref *corev1.SecretReference, at *field.Path) field.ErrorList {
	if ref == nil {
		return nil
	}
	return append(rules.Required(at.Child("secretRef", "name"), ref.Name),
		rules.Required(at.Child("secretRef", "namespace"), ref.Namespace)...)
}

func validateFlocker(r *corev1.FlockerVolumeSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case r.DatasetName == "" && r.DatasetUUID == "":
		errs = append(errs, field.Required(at, "one of datasetName and datasetUUID is required"))
	case r.DatasetName != "" && r.DatasetUUID != "":
		errs = append(errs, field.Invalid(at, "resource",
			"datasetName and datasetUUID can not be specified simultaneously"))
	}
	if strings.Contains(r.DatasetName, "/") {
		errs = append(errs, field.Invalid(at.Child("datasetName"), r.DatasetName, "must not contain '/'"))
	}
	return errs
}

func validateMonitors(list []string, at *field.Path) field.ErrorList {
	if len(list) == 0 {
		return field.ErrorList{field.Required(at.Child("monitors"), "")}
	}
	return nil
}

func validateRBD(list []string, image string, at *field.Path) field.ErrorList {
	return append(validateMonitors(list, at), rules.Required(at.Child("image"), image)...)
}

func validateQuobyte(r *corev1.QuobyteVolumeSource, at *field.Path) field.ErrorList {
	const form = "must be a host:port pair or multiple pairs separated by commas"
	var errs field.ErrorList
	switch at := at.Child("registry"); {
	case r.Registry == "":
		errs = append(errs, field.Required(at, form))
	case len(r.Tenant) >= 65:
		errs = append(errs, field.Required(at.Child("tenant"),
			"must be a UUID and may not exceed a length of 64 characters"))
	default:
		for pair := range strings.SplitSeq(r.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				errs = append(errs, field.Invalid(at, r.Registry, form))
			}
		}
	}
	return append(errs, rules.Required(at.Child("volume"), r.Volume)...)
}

func validateFibreChannel(r *corev1.FCVolumeSource, at *field.Path) field.ErrorList {
	switch {
	case len(r.TargetWWNs) == 0 && len(r.WWIDs) == 0:
		return field.ErrorList{field.Required(at.Child("targetWWNs"),
			"must specify either targetWWNs or wwids, but not both")}
	case len(r.TargetWWNs) > 0 && len(r.WWIDs) > 0:
		return field.ErrorList{field.Invalid(at.Child("targetWWNs"), r.TargetWWNs,
			"targetWWNs and wwids can not be specified simultaneously")}
	case len(r.TargetWWNs) == 0:
		return nil
	case r.Lun == nil:
		return field.ErrorList{field.Required(at.Child("lun"), "lun is required if targetWWNs is specified")}
	case *r.Lun < 0 || *r.Lun > 255:
		return field.ErrorList{field.Invalid(at.Child("lun"), *r.Lun, validation.InclusiveRangeError(0, 255))}
	}
	return nil
}

func validateAzureDisk(r *corev1.AzureDiskVolumeSource, at *field.Path) field.ErrorList {
	errs := append(rules.Required(at.Child("diskName"), r.DiskName),
		rules.Required(at.Child("diskURI"), r.DataDiskURI)...)
	if m := r.CachingMode; m != nil {
		errs = append(errs, rules.Supported(string(*m), at.Child("cachingMode"),
			string(corev1.AzureDataDiskCachingNone), string(corev1.AzureDataDiskCachingReadOnly),
			string(corev1.AzureDataDiskCachingReadWrite))...)
	}
	if k := r.Kind; k != nil {
		errs = append(errs, rules.Supported(string(*k), at.Child("kind"), string(corev1.AzureDedicatedBlobDisk),
			string(corev1.AzureManagedDisk), string(corev1.AzureSharedBlobDisk))...)
	}
	managed := r.Kind != nil && *r.Kind == corev1.AzureManagedDisk
	if managed && !strings.HasPrefix(r.DataDiskURI, "/subscriptions/") {
		errs = append(errs, field.NotSupported(at.Child("diskURI"), r.DataDiskURI,
			[]string{"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"}))
	}
	if !managed && !strings.HasPrefix(r.DataDiskURI, "https://") {
		errs = append(errs, field.NotSupported(at.Child("diskURI"), r.DataDiskURI,
			[]string{"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"}))
	}
	return errs
}

func validateScaleIO(gateway, system, volume string, at *field.Path) field.ErrorList {
	errs := append(rules.Required(at.Child("gateway"), gateway), rules.Required(at.Child("system"), system)...)
	return append(errs, rules.Required(at.Child("volumeName"), volume)...)
}

func validateStorageOS(volume, namespace string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if volume == "" {
		errs = append(errs, field.Required(at.Child("volumeName"), ""))
	} else {
		errs = append(errs, rules.Messages(at.Child("volumeName"), volume, validation.IsDNS1123Label(volume))...)
	}
	if namespace != "" {
		errs = append(errs, rules.Messages(at.Child("volumeNamespace"), namespace,
			validation.IsDNS1123Label(namespace))...)
	}
	return errs
}

func validatePersistentISCSI(r *corev1.ISCSIPersistentVolumeSource, at *field.Path) field.ErrorList {
	errs := validateISCSI(r.TargetPortal, r.IQN, r.Lun, r.InitiatorName, at)
	switch auth := r.DiscoveryCHAPAuth || r.SessionCHAPAuth; {
	case auth && r.SecretRef == nil:
		errs = append(errs, field.Required(at.Child("secretRef"), ""))
	case r.SecretRef != nil:
		errs = append(errs, rules.Required(at.Child("secretRef", "name"), r.SecretRef.Name)...)
	}
	return errs
}

func validateISCSI(portal, iqn string, lun int32, initiator *string, at *field.Path) field.ErrorList {
	errs := rules.Required(at.Child("targetPortal"), portal)
	name := func(value, f string) {
		if !slices.ContainsFunc([]string{"iqn", "eui", "naa"},
			func(p string) bool { return strings.HasPrefix(value, p) }) {
			errs = append(errs, field.Invalid(at.Child(f), value, "must be valid format"))
		}
	}
	if iqn == "" {
		errs = append(errs, field.Required(at.Child("iqn"), ""))
	} else {
		name(iqn, "iqn")
	}
	if lun < 0 || lun > 255 {
		errs = append(errs, field.Invalid(at.Child("lun"), lun, validation.InclusiveRangeError(0, 255)))
	}
	if initiator != nil {
		name(*initiator, "initiatorname")
	}
	return errs
}

// inlineSource validates the in-tree volume types of storage services in a pod.
func inlineSource(v *corev1.VolumeSource, s *Sources) {
	if r := v.FC; r != nil {
		s.Take("fc", func(at *field.Path) field.ErrorList { return validateFibreChannel(r, at) })
	}
	if r := v.Flocker; r != nil {
		s.Take("flocker", func(at *field.Path) field.ErrorList { return validateFlocker(r, at) })
	}
	if r := v.Quobyte; r != nil {
		s.Take("quobyte", func(at *field.Path) field.ErrorList { return validateQuobyte(r, at) })
	}
	if r := v.PhotonPersistentDisk; r != nil {
		s.Take("photonPersistentDisk",
			func(at *field.Path) field.ErrorList { return rules.Required(at.Child("pdID"), r.PdID) })
	}
	if r := v.ScaleIO; r != nil {
		s.Take("scaleIO",
			func(at *field.Path) field.ErrorList { return validateScaleIO(r.Gateway, r.System, r.VolumeName, at) })
	}
	if r := v.StorageOS; r != nil {
		s.Take("storageos",
			func(at *field.Path) field.ErrorList { return validateStorageOS(r.VolumeName, r.VolumeNamespace, at) })
	}
}
