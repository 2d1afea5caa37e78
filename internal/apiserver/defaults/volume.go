package defaults

import (
	corev1 "k8s.io/api/core/v1"
)

// fileMode is the mode of files made from secrets, config maps, projections and the downward API (L1.19).
const fileMode int32 = 0o644

// serviceAccountTokenSeconds is the life of a projected token that names none (L1.19).
const serviceAccountTokenSeconds int64 = 60 * 60

func volume(v *corev1.VolumeSource) {
	switch {
	case v.EmptyDir != nil, v.PersistentVolumeClaim != nil, v.NFS != nil, v.CSI != nil:
	case v.HostPath != nil:
		orNew(&v.HostPath.Type, corev1.HostPathUnset)
	case v.Secret != nil:
		orNew(&v.Secret.DefaultMode, fileMode)
	case v.ConfigMap != nil:
		orNew(&v.ConfigMap.DefaultMode, fileMode)
	case v.DownwardAPI != nil:
		orNew(&v.DownwardAPI.DefaultMode, fileMode)
		downwardItems(v.DownwardAPI.Items)
	case v.Projected != nil:
		projected(v.Projected)
	case v.Ephemeral != nil:
		if t := v.Ephemeral.VolumeClaimTemplate; t != nil {
			claimSpec(&t.Spec)
		}
	case v.Image != nil:
		orDefault(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	case v.ISCSI != nil:
		orDefault(&v.ISCSI.ISCSIInterface, "default")
	case v.RBD != nil:
		orDefault(&v.RBD.RBDPool, "rbd")
		orDefault(&v.RBD.RadosUser, "admin")
		orDefault(&v.RBD.Keyring, "/etc/ceph/keyring")
	case v.AzureDisk != nil:
		azureDisk(v.AzureDisk)
	case v.ScaleIO != nil:
		orDefault(&v.ScaleIO.StorageMode, "ThinProvisioned")
		orDefault(&v.ScaleIO.FSType, "xfs")
	default:
		if *v == (corev1.VolumeSource{}) {
			v.EmptyDir = &corev1.EmptyDirVolumeSource{}
		}
	}
}

func downwardItems(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		fieldRef(items[i].FieldRef)
	}
}

func projected(p *corev1.ProjectedVolumeSource) {
	orNew(&p.DefaultMode, fileMode)
	for i := range p.Sources {
		if t := p.Sources[i].ServiceAccountToken; t != nil {
			orNew(&t.ExpirationSeconds, serviceAccountTokenSeconds)
		}
		if d := p.Sources[i].DownwardAPI; d != nil {
			downwardItems(d.Items)
		}
	}
}

func azureDisk(d *corev1.AzureDiskVolumeSource) {
	orNew(&d.CachingMode, corev1.AzureDataDiskCachingReadWrite)
	orNew(&d.Kind, corev1.AzureSharedBlobDisk)
	orNew(&d.FSType, "ext4")
	orNew(&d.ReadOnly, false)
}

func persistentVolume(v *corev1.PersistentVolume) {
	orDefault(&v.Status.Phase, corev1.VolumePending)
	orDefault(&v.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	orNew(&v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	roundUp(v.Spec.Capacity)
	switch s := &v.Spec.PersistentVolumeSource; {
	case s.HostPath != nil:
		orNew(&s.HostPath.Type, corev1.HostPathUnset)
	case s.ISCSI != nil:
		orDefault(&s.ISCSI.ISCSIInterface, "default")
	case s.RBD != nil:
		orDefault(&s.RBD.RBDPool, "rbd")
		orDefault(&s.RBD.RadosUser, "admin")
		orDefault(&s.RBD.Keyring, "/etc/ceph/keyring")
	case s.AzureDisk != nil:
		azureDisk(s.AzureDisk)
	case s.ScaleIO != nil:
		orDefault(&s.ScaleIO.StorageMode, "ThinProvisioned")
		orDefault(&s.ScaleIO.FSType, "xfs")
	}
}

func persistentVolumeClaim(c *corev1.PersistentVolumeClaim) {
	orDefault(&c.Status.Phase, corev1.ClaimPending)
	claimSpec(&c.Spec)
	roundUp(c.Status.Capacity)
	roundUp(c.Status.AllocatedResources)
}

func claimSpec(s *corev1.PersistentVolumeClaimSpec) {
	orNew(&s.VolumeMode, corev1.PersistentVolumeFilesystem)
	roundUp(s.Resources.Limits)
	roundUp(s.Resources.Requests)
}
