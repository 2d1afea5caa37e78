package volumes

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/defaulting"
)

// RegisterDefaults adds the defaults of this package's kinds to s.
func RegisterDefaults(s *runtime.Scheme) {
	defaulting.Add(s, defaultPersistentVolume)
	defaulting.Add(s, DefaultPersistentVolumeClaim)
}

// FileMode is the default mode of files from secrets, config maps, projections, and the downward
// API (L1.19).
const FileMode int32 = 0o644

// DefaultAzureDisk sets the defaults of an Azure disk, in a pod or in a persistent volume.
func DefaultAzureDisk(d *corev1.AzureDiskVolumeSource) {
	defaulting.OrNew(&d.CachingMode, corev1.AzureDataDiskCachingReadWrite)
	defaulting.OrNew(&d.Kind, corev1.AzureSharedBlobDisk)
	defaulting.OrNew(&d.FSType, "ext4")
	defaulting.OrNew(&d.ReadOnly, false)
}

func defaultPersistentVolume(v *corev1.PersistentVolume) {
	defaulting.OrDefault(&v.Status.Phase, corev1.VolumePending)
	defaulting.OrDefault(&v.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	defaulting.OrNew(&v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	defaulting.RoundUp(v.Spec.Capacity)
	switch s := &v.Spec.PersistentVolumeSource; {
	case s.HostPath != nil:
		defaulting.OrNew(&s.HostPath.Type, corev1.HostPathUnset)
	case s.ISCSI != nil:
		defaulting.OrDefault(&s.ISCSI.ISCSIInterface, "default")
	case s.RBD != nil:
		defaulting.OrDefault(&s.RBD.RBDPool, "rbd")
		defaulting.OrDefault(&s.RBD.RadosUser, "admin")
		defaulting.OrDefault(&s.RBD.Keyring, "/etc/ceph/keyring")
	case s.AzureDisk != nil:
		DefaultAzureDisk(s.AzureDisk)
	case s.ScaleIO != nil:
		defaulting.OrDefault(&s.ScaleIO.StorageMode, "ThinProvisioned")
		defaulting.OrDefault(&s.ScaleIO.FSType, "xfs")
	}
}

// DefaultPersistentVolumeClaim sets the defaults of a claim or of a claim template.
func DefaultPersistentVolumeClaim(c *corev1.PersistentVolumeClaim) {
	defaulting.OrDefault(&c.Status.Phase, corev1.ClaimPending)
	DefaultClaimSpec(&c.Spec)
	defaulting.RoundUp(c.Status.Capacity)
	defaulting.RoundUp(c.Status.AllocatedResources)
}

// DefaultClaimSpec sets the defaults in the spec of a claim or of a claim template.
func DefaultClaimSpec(s *corev1.PersistentVolumeClaimSpec) {
	defaulting.OrNew(&s.VolumeMode, corev1.PersistentVolumeFilesystem)
	defaulting.RoundUp(s.Resources.Limits)
	defaulting.RoundUp(s.Resources.Requests)
}
