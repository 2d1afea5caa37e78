package storage

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/defaulting"
)

func defaultStorageClass(c *storagev1.StorageClass) {
	defaulting.OrNew(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	defaulting.OrNew(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
}

func defaultCSIDriver(d *storagev1.CSIDriver) {
	defaulting.OrNew(&d.Spec.AttachRequired, true)
	defaulting.OrNew(&d.Spec.PodInfoOnMount, false)
	defaulting.OrNew(&d.Spec.StorageCapacity, false)
	defaulting.OrNew(&d.Spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	defaulting.OrNew(&d.Spec.RequiresRepublish, false)
	defaulting.OrNew(&d.Spec.SELinuxMount, false)
	defaulting.OrNew(&d.Spec.PreventPodSchedulingIfMissing, false)
	if len(d.Spec.VolumeLifecycleModes) == 0 {
		d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
}

// RegisterDefaults adds the defaults of this package's kinds to s.
func RegisterDefaults(s *runtime.Scheme) {
	defaulting.Add(s, defaultStorageClass)
	defaulting.Add(s, defaultCSIDriver)
}
