package validation

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
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

// balancerWarnings are about the address of a load balancer in a status, if it has one.
func balancerWarnings(i int, ip string) []string {
	if ip == "" {
		return nil
	}
	return validation.GetWarningsForIP(statusPath.Child("loadBalancer", "ingress").Index(i), ip)
}

func nodeWarnings(n *corev1.Node) []string {
	var out []string
	if n.Spec.ConfigSource != nil { //nolint:staticcheck // deprecated, which is what the warning says
		out = append(out, "spec.configSource: the feature is removed")
	}
	if n.Spec.DoNotUseExternalID != "" {
		out = append(out, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, r := range n.Spec.PodCIDRs {
		out = append(out, validation.GetWarningsForCIDR(specPath.Child("podCIDRs").Index(i), r)...)
	}
	return out
}

func persistentVolumeWarnings(v *corev1.PersistentVolume) []string {
	var out hints
	for _, a := range [...][2]string{
		{corev1.BetaStorageClassAnnotation, `deprecated since v1.8; use "storageClassName" attribute instead`},
		{corev1.MountOptionAnnotation, `deprecated since v1.31; use "mountOptions" attribute instead`},
	} {
		if _, ok := v.Annotations[a[0]]; ok {
			out.say(field.NewPath("metadata", "annotations").Key(a[0]), "%s", a[1])
		}
	}
	s := &v.Spec
	if s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		out.say(specPath.Child("persistentVolumeReclaimPolicy"), "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	}
	if s.NodeAffinity != nil && s.NodeAffinity.Required != nil {
		for i := range s.NodeAffinity.Required.NodeSelectorTerms {
			out = append(out, termWarnings(&s.NodeAffinity.Required.NodeSelectorTerms[i], false, specPath.Child("nodeAffinity", "required", "nodeSelectorTerms").Index(i))...)
		}
	}
	for _, gone := range []struct {
		used       bool
		name, text string
	}{
		{s.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
		{s.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
		{s.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
		{s.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
		{s.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
		{s.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
	} {
		if gone.used {
			out.say(specPath.Child(gone.name), "%s", gone.text)
		}
	}
	return out
}

// endpointSliceWarnings are about the type of new slices and the form of addresses. Controllers write the right form.
func endpointSliceWarnings(_ context.Context, obj, old runtime.Object) []string {
	s, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil
	}
	var out []string
	if old == nil && s.AddressType == discoveryv1.AddressTypeFQDN {
		out = append(out, "spec.addressType: FQDN endpoints are deprecated")
	}
	switch s.Labels[discoveryv1.LabelManagedBy] {
	case "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io":
		return out
	}
	for i := range s.Endpoints {
		for j, a := range s.Endpoints[i].Addresses {
			out = append(out, validation.GetWarningsForIP(field.NewPath("endpoints").Index(i).Child("addresses").Index(j), a)...)
		}
	}
	return out
}

// indexesLimit is how many indices of a job that runs that many pods at once are kept in its status.
const indexesLimit, indexesAtOnce = 100_000, 10_000

func jobSpecWarnings(s *batchv1.JobSpec, at *field.Path) []string {
	if s.CompletionMode == nil || *s.CompletionMode != batchv1.IndexedCompletion || ptr.Deref(s.Completions, 0) <= indexesLimit || ptr.Deref(s.Parallelism, 0) <= indexesAtOnce {
		return nil
	}
	return []string{at.String() + ": In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"}
}

func cronJobWarnings(_ context.Context, obj, old runtime.Object) []string {
	c, ok := obj.(*batchv1.CronJob)
	if !ok {
		return nil
	}
	before, isUpdate := old.(*batchv1.CronJob)
	var out []string
	if at := specPath.Child("jobTemplate", "spec"); !isUpdate || before.Generation != c.Generation {
		out = append(jobSpecWarnings(&c.Spec.JobTemplate.Spec, at), templateWarnings(&c.Spec.JobTemplate.Spec.Template, at.Child("template"))...)
	}
	if isUpdate && strings.Contains(c.Spec.Schedule, "TZ") {
		out = append(out, "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details")
	}
	return out
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
