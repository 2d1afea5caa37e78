package validation

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func statefulSet(s *appsv1.StatefulSet) field.ErrorList {
	errs := statefulSpec(s)
	if s.Spec.ServiceName != "" {
		errs = append(errs, messages(specPath.Child("serviceName"), s.Spec.ServiceName, validation.IsDNS1123Label(s.Spec.ServiceName))...)
	}
	for i := range s.Spec.VolumeClaimTemplates {
		errs = append(errs, claimSpec(&s.Spec.VolumeClaimTemplates[i].Spec, claimFaults{}, specPath.Child("volumeClaimTemplates").Index(i).Child("spec"))...)
	}
	return append(errs, podTemplate(asControllerMakes(s), specPath.Child("template"))...)
}

// statefulSpec checks all but what can't be changed and the template itself.
func statefulSpec(s *appsv1.StatefulSet) field.ErrorList {
	var errs field.ErrorList
	switch p := s.Spec.PodManagementPolicy; p {
	case "":
		errs = append(errs, field.Required(specPath.Child("podManagementPolicy"), ""))
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		errs = append(errs, field.Invalid(specPath.Child("podManagementPolicy"), p, fmt.Sprintf("must be '%s' or '%s'", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)))
	}
	at := specPath.Child("updateStrategy")
	switch s.Spec.UpdateStrategy.Type {
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.Spec.UpdateStrategy.RollingUpdate != nil {
			errs = append(errs, field.Invalid(at.Child("rollingUpdate"), s.Spec.UpdateStrategy.RollingUpdate, fmt.Sprintf("only allowed for updateStrategy '%s'", appsv1.RollingUpdateStatefulSetStrategyType)))
		}
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if r := s.Spec.UpdateStrategy.RollingUpdate; r != nil {
			errs = append(errs, nonNegative(r.Partition, at.Child("rollingUpdate", "partition"))...)
			errs = append(errs, amount(r.MaxUnavailable, at.Child("rollingUpdate", "maxUnavailable"))...)
			if r.MaxUnavailable != nil && zero(r.MaxUnavailable) {
				errs = append(errs, field.Invalid(at.Child("rollingUpdate", "maxUnavailable"), *r.MaxUnavailable, "cannot be 0"))
			}
		}
	case "":
		errs = append(errs, field.Required(at, ""))
	default:
		errs = append(errs, field.Invalid(at, s.Spec.UpdateStrategy, fmt.Sprintf("must be '%s' or '%s'", appsv1.RollingUpdateStatefulSetStrategyType, appsv1.OnDeleteStatefulSetStrategyType)))
	}
	errs = append(errs, nonNegative(s.Spec.Replicas, specPath.Child("replicas"))...)
	errs = append(errs, nonNegative(&s.Spec.MinReadySeconds, specPath.Child("minReadySeconds"))...)
	if s.Spec.Ordinals != nil {
		errs = append(errs, nonNegative(&s.Spec.Ordinals.Start, specPath.Child("ordinals.start"))...)
	}
	if p := s.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		at := specPath.Child("persistentVolumeClaimRetentionPolicy")
		for _, x := range []struct {
			name   string
			policy appsv1.PersistentVolumeClaimRetentionPolicyType
		}{{"whenDeleted", p.WhenDeleted}, {"whenScaled", p.WhenScaled}} {
			if x.policy != appsv1.RetainPersistentVolumeClaimRetentionPolicyType && x.policy != appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
				errs = append(errs, field.NotSupported(at.Child(x.name), x.policy, []appsv1.PersistentVolumeClaimRetentionPolicyType{
					appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType}))
			}
		}
	}
	errs = append(errs, selects(s.Spec.Selector, &s.Spec.Template, "statefulset")...)
	return append(errs, runsAlways(&s.Spec.Template, "StatefulSet")...)
}

// asControllerMakes returns a template with what the controller sets in each pod:
// a volume for each claim, and its own host name.
func asControllerMakes(s *appsv1.StatefulSet) *corev1.PodTemplateSpec {
	t := s.Spec.Template.DeepCopy()
	t.Spec.Hostname, t.Spec.Subdomain = "", ""
	var volumes []corev1.Volume
	claimed := map[string]bool{}
	for _, c := range s.Spec.VolumeClaimTemplates {
		if !claimed[c.Name] {
			volumes = append(volumes, corev1.Volume{Name: c.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name}}})
		}
		claimed[c.Name] = true
	}
	for _, v := range t.Spec.Volumes {
		if !claimed[v.Name] {
			volumes = append(volumes, v)
		}
	}
	t.Spec.Volumes = volumes
	return t
}

// A template that was wrong before may stay so: the set could not be mended else.
func statefulSetUpdate(s, old *appsv1.StatefulSet) field.ErrorList {
	errs := statefulSpec(s)
	before := append(statefulSpec(old), podTemplate(asControllerMakes(old), specPath.Child("template"))...)
	if len(before) == 0 {
		errs = append(errs, podTemplate(asControllerMakes(s), specPath.Child("template"))...)
	} else {
		errs = append(errs, metav1validation.ValidateLabels(s.Spec.Template.Labels, specPath.Child("template", "labels"))...)
		errs = append(errs, apivalidation.ValidateAnnotations(s.Spec.Template.Annotations, specPath.Child("template", "annotations"))...)
	}
	errs = append(errs, immutableSelector(s.Spec.Selector, old.Spec.Selector, specPath.Child("selector"))...)
	errs = append(errs, immutableSelector(s.Spec.VolumeClaimTemplates, old.Spec.VolumeClaimTemplates, specPath.Child("volumeClaimTemplates"))...)
	errs = append(errs, immutableSelector(s.Spec.ServiceName, old.Spec.ServiceName, specPath.Child("serviceName"))...)
	return append(errs, immutableSelector(s.Spec.PodManagementPolicy, old.Spec.PodManagementPolicy, specPath.Child("podManagementPolicy"))...)
}
