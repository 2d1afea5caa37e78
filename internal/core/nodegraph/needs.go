package nodegraph

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

var resources = map[Kind]string{
	Secret: "secrets", ConfigMap: "configmaps", ServiceAccount: "serviceaccounts",
	VolumeClaim: "persistentvolumeclaims", ResourceClaim: "resourceclaims",
}

// Needs returns the API resource that a pod depends on and, for a volume, through which kind of
// volume; "" if there is none. A static pod must run without the API, so neither its manifest nor
// its mirror pod may depend on one (L7.111).
func Needs(pod *corev1.Pod) string {
	refs := Named(pod)
	for _, kind := range []Kind{ServiceAccount, Secret, ConfigMap} {
		if slices.ContainsFunc(refs, func(r Ref) bool { return r.Kind == kind }) {
			return resources[kind]
		}
	}
	if len(pod.Spec.ResourceClaims) > 0 { // also through a template, which names no claim yet
		return resources[ResourceClaim]
	}
	for i := range pod.Spec.Volumes {
		if what := volumeNeeds(&pod.Spec.Volumes[i]); what != "" {
			return what
		}
	}
	return ""
}

// volumeNeeds omits what Named returns.
func volumeNeeds(v *corev1.Volume) string {
	switch {
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)"
	case v.Glusterfs != nil:
		return "endpoints (via glusterFS volumes)"
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims"
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)"
	case v.Projected == nil:
		return ""
	}
	for _, s := range v.Projected.Sources {
		switch {
		case s.ServiceAccountToken != nil:
			return "serviceaccounts (via projected volumes)"
		case s.ClusterTrustBundle != nil:
			return "clustertrustbundles"
		case s.PodCertificate != nil:
			return "podcertificates"
		}
	}
	return ""
}
