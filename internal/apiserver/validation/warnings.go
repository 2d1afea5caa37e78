package validation

import (
	"crypto/tls"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func secretWarnings(s *corev1.Secret) []string {
	if s.Type != corev1.SecretTypeTLS {
		return nil
	}
	if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return []string{err.Error()}
	}
	return nil
}

func endpointsWarnings(e *corev1.Endpoints) []string {
	out := []string{"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"}
	for i, s := range e.Subsets {
		at := field.NewPath("subsets").Index(i)
		for j, a := range s.Addresses {
			out = append(out, validation.GetWarningsForIP(at.Child("addresses").Index(j).Child("ip"), a.IP)...)
		}
		for j, a := range s.NotReadyAddresses {
			out = append(out, validation.GetWarningsForIP(at.Child("notReadyAddresses").Index(j).Child("ip"), a.IP)...)
		}
	}
	return out
}

func nodeWarnings(n *corev1.Node) []string {
	if n.Spec.DoNotUseExternalID != "" {
		return []string{"spec.externalID: this field is deprecated, and is unused by Kubernetes"}
	}
	return nil
}

func persistentVolumeClaimWarnings(c *corev1.PersistentVolumeClaim) []string {
	var out []string
	if _, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		out = append(out, fmt.Sprintf(`%s: deprecated since v1.8; use "storageClassName" attribute instead`, field.NewPath("metadata", "annotations").Key(corev1.BetaStorageClassAnnotation)))
	}
	return append(out, claimSpecWarnings(&c.Spec, field.NewPath("spec"))...)
}

func statefulSetWarnings(s *appsv1.StatefulSet) []string {
	var out []string
	for i := range s.Spec.VolumeClaimTemplates {
		out = append(out, claimSpecWarnings(&s.Spec.VolumeClaimTemplates[i].Spec, specPath.Child("volumeClaimTemplates").Index(i))...)
	}
	if n := s.Spec.RevisionHistoryLimit; n != nil && *n < 0 {
		out = append(out, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return out
}
