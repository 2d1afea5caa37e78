package pods

import (
	corev1 "k8s.io/api/core/v1"

	"carob/internal/kinds/defaulting"
	"carob/internal/kinds/volumes"
)

// serviceAccountTokenSeconds is the default lifetime of a projected token (L1.19).
const serviceAccountTokenSeconds int64 = 60 * 60

func defaultVolume(v *corev1.VolumeSource) {
	switch {
	case v.EmptyDir != nil, v.PersistentVolumeClaim != nil, v.NFS != nil, v.CSI != nil:
	case v.HostPath != nil:
		defaulting.OrNew(&v.HostPath.Type, corev1.HostPathUnset)
	case v.Secret != nil:
		defaulting.OrNew(&v.Secret.DefaultMode, volumes.FileMode)
	case v.ConfigMap != nil:
		defaulting.OrNew(&v.ConfigMap.DefaultMode, volumes.FileMode)
	case v.DownwardAPI != nil:
		defaulting.OrNew(&v.DownwardAPI.DefaultMode, volumes.FileMode)
		defaultDownwardItems(v.DownwardAPI.Items)
	case v.Projected != nil:
		defaultProjected(v.Projected)
	case v.Ephemeral != nil:
		if t := v.Ephemeral.VolumeClaimTemplate; t != nil {
			volumes.DefaultClaimSpec(&t.Spec)
		}
	case v.Image != nil:
		if v.Image.PullPolicy == "" {
			v.Image.PullPolicy = DefaultPullPolicy(v.Image.Reference)
		}
	case v.ISCSI != nil:
		defaulting.OrDefault(&v.ISCSI.ISCSIInterface, "default")
	case v.RBD != nil:
		defaulting.OrDefault(&v.RBD.RBDPool, "rbd")
		defaulting.OrDefault(&v.RBD.RadosUser, "admin")
		defaulting.OrDefault(&v.RBD.Keyring, "/etc/ceph/keyring")
	case v.AzureDisk != nil:
		volumes.DefaultAzureDisk(v.AzureDisk)
	case v.ScaleIO != nil:
		defaulting.OrDefault(&v.ScaleIO.StorageMode, "ThinProvisioned")
		defaulting.OrDefault(&v.ScaleIO.FSType, "xfs")
	default:
		if *v == (corev1.VolumeSource{}) {
			v.EmptyDir = &corev1.EmptyDirVolumeSource{}
		}
	}
}

func defaultDownwardItems(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		defaultFieldRef(items[i].FieldRef)
	}
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	defaulting.OrNew(&p.DefaultMode, volumes.FileMode)
	for i := range p.Sources {
		if t := p.Sources[i].ServiceAccountToken; t != nil {
			defaulting.OrNew(&t.ExpirationSeconds, serviceAccountTokenSeconds)
		}
		if d := p.Sources[i].DownwardAPI; d != nil {
			defaultDownwardItems(d.Items)
		}
	}
}
